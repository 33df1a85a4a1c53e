"""N-gram models beside neural ones: CTC, mixtures, rescoring."""
