"""The fields in the header of a model file. Imports nothing: `mgpu_ngram.kenlm` reads model files without NumPy."""

FORMAT = "mgpu_ngram model"
FORMAT_VERSION = 1
EDGE_NUMBERS = ("buckets", "word_bits", "key_bits", "node_bits", "check_bits", "filter_bits")


MODEL_FILES = {  # names of the model in the folder of a run, by format
    "safetensors": "model.safetensors",
    "arpa": "model.arpa",
    "kenlm-probing": "model.binary",
    "kenlm-trie": "model.binary",
}
