"""A pipeline step for datatrove that filters documents by the perplexity of an n-gram model; needs datatrove.

from mgpu_ngram.datatrove import PerplexityFilter

PerplexityFilter("en.arpa.bin", tokenizer="en.sp.model", normalize="ccnet", max_perplexity=1500)
"""

from __future__ import annotations

import os
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter
from datatrove.pipeline.writers.disk_base import DiskWriter

from mgpu_ngram.api.document_filter import DocumentFilter
from mgpu_ngram.core.errors import InputError

BATCH_DOCUMENTS = 1000
REASON = "perplexity"  # reason of a dropped document, for the exclusion writer and the statistics


class PerplexityFilter(BaseFilter):
    """Adds perplexities to the metadata of documents and drops documents by them, as `mgpu-ngram filter` does.

    model             path of a model file, an ARPA file, a KenLM binary or a table of models; with {language}, one of
                      each language, which the metadata of the documents gives
    exclusion_writer  writer of the dropped documents
    batch_size        number of documents that are scored at once
    device            "auto", "cpu" or "gpu"
    options           the settings of `mgpu_ngram.api.document_filter.DocumentFilter` except text_column

    Each process of a pipeline opens the model at its first batch. Raises InputError for a model or an option that
    cannot be used.
    """

    name = "n-gram perplexity"

    def __init__(
        self,
        model: str | os.PathLike[str],
        exclusion_writer: DiskWriter | None = None,
        batch_size: int = BATCH_DOCUMENTS,
        device: str = "auto",
        **options: Any,
    ):
        super().__init__(exclusion_writer, batch_size)
        if "text_column" in options:
            raise InputError("text_column is given but the text of datatrove's documents is doc.text; leave it out")
        self.documents = DocumentFilter(model, device, **options)

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """Return whether a document is kept, with the reason if it is not."""
        return self.filter_batch([doc])[0]

    def filter_batch(self, batch: list[Document]) -> list[bool | tuple[bool, str]]:
        """Return whether each document is kept, and add the new fields to its metadata."""
        language = self.documents.config.language
        found = self.documents([doc.text or "" for doc in batch], [doc.metadata.get(language) for doc in batch])
        for d, doc in enumerate(batch):
            for name in found.columns:
                doc.metadata.pop(name, None)
            doc.metadata.update({name: v for name, values in found.columns.items() if (v := values[d]) is not None})
        return [True if kept else (False, REASON) for kept in found.kept_D]
