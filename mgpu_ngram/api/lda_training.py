"""Train the model of the estimator `LDA`, in this process or on the workers of a client."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from typing import Any

from mgpu_ngram.api.executors import executor_of
from mgpu_ngram.api.lda_fitted import device_for
from mgpu_ngram.core.bags.bags import empty_corpus
from mgpu_ngram.core.bags.topic_model import TopicModel
from mgpu_ngram.engine.bags.bag_corpus import BagCorpus
from mgpu_ngram.jobs.lda.config import LdaConfig
from mgpu_ngram.jobs.lda.run import PART_TOKENS, priors_of, settings_of
from mgpu_ngram.jobs.lda.train import corpus_of, shared_folder, train


def trained(
    lda: Any, config: LdaConfig, documents: BagCorpus, client: Any, earlier: TopicModel | None = None
) -> TopicModel | None:
    """Return an estimator's model of documents, in addition to those of the earlier model; None if they are empty then.

    client  a `distributed.Client`, whose workers train; None: this process
    """
    priors = earlier.priors if earlier else priors_of(config, lda.seeds or {}, documents)
    executor, folder = None, None
    try:
        if client is not None:
            executor = executor_of(lda.device, client)
            folder = shared_folder(executor)
        held_out = config.held_out, config.seed
        blocks = documents.blocks(PART_TOKENS)
        corpus = corpus_of(blocks, documents.num_words, folder, earlier=earlier, held_out=held_out)
        if not corpus.tokens:
            if earlier:
                return None
            raise empty_corpus(documents.name, corpus.documents)
        executor = executor or executor_of(device_for(lda.device, config.cpu_seconds(corpus.tokens)), None)
        callback = partial(_report, lda) if lda.callback or lda.verbose else None
        model = train(config, corpus, executor, documents.words, callback=callback, priors=priors).model
    finally:
        if executor:
            executor.close()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    settings = settings_of(config) | {"lowercase": lda.lowercase, "token_pattern": lda.token_pattern}
    if earlier:  # the joint likelihood of the batch alone is not defined
        settings |= {"seed": earlier.settings.get("seed", 0), "batches": lda.n_batch_iter_ + 1}
        history = tuple({k: v for k, v in metrics.items() if k != "joint"} for metrics in model.history)
        model = replace(model, history=history)
    return replace(model, settings=settings)


def _report(lda: Any, sweep: int, metrics: dict[str, float]) -> object:
    if lda.verbose:
        held = f", held-out perplexity {metrics['held_out_perplexity']:,.1f}" if lda.held_out else ""
        print(f"sweep {sweep} of {lda.max_iter}: perplexity {metrics['perplexity']:,.1f}{held}")
    return lda.callback(sweep, metrics) if lda.callback else False
