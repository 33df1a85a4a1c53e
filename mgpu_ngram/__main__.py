"""`python -m mgpu_ngram` is `mgpu-ngram`."""

from mgpu_ngram.entry import main

if __name__ == "__main__":
    raise SystemExit(main())
