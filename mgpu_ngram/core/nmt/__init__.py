"""Translation models as files: weights, vocabularies and settings of Amun."""
