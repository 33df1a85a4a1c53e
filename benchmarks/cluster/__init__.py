"""Clusters: transports, shuffles, vocabularies and the speed-up of more workers."""
