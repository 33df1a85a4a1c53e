"""The Python interface: functions, and classes that keep a model or an estimator."""
