"""The version of this package, stated only here."""

VERSION = "0.1.0"
