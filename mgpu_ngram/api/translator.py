"""`Translator`, recurrent translation models for Python users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from mgpu_ngram.api.executors import executor_of
from mgpu_ngram.api.model import Model
from mgpu_ngram.cluster.devices import cpu_cores, resolve_device
from mgpu_ngram.cluster.executor import Handle, in_order
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.engine.decode.ensemble import check_weights
from mgpu_ngram.engine.decode.lines import DecodeOptions, find_results
from mgpu_ngram.engine.decode.open_translation import open_translation
from mgpu_ngram.engine.decode.output import text_of
from mgpu_ngram.engine.decode.search_options import Hypothesis
from mgpu_ngram.jobs.decode.config import DecodeConfig
from mgpu_ngram.jobs.decode.options import files_of, options_of, sentences_of_task

AHEAD = 2  # tasks per worker in flight or buffered
FILE_OPTIONS = ("debpe", "columns", "softmax_filter", "first_words", "most_translations", "table_bytes")
OF_SEARCH = (
    "length_penalty", "word_penalty", "max_length", "max_length_multiple", "max_steps", "allow_unk", "early_stopping",
    "sample", "top_k", "top_p", "temperature", "seed", "mini_batch", "mini_batch_words", "batching",
)  # fmt: skip


class Translated(NamedTuple):
    """One result for a sentence.

    text             the words of the result; pieces of words are joined if the translator has BPE codes
    tokens           the words or pieces from the model, without the end of the sentence
    score            the score that ranks the results
    log_prob         natural logarithm of the probability; for several models, the weighted sum
    token_log_probs  contribution of each token to log_prob, including the end of the sentence
    alignment        None, or (tokens, source tokens) float32, both with the end of the sentence: attention weights of
                     the first model that has attention
    model_log_probs  log-probability of each model, the n-gram model last; () for a single model
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    log_prob: float
    token_log_probs: tuple[float, ...]
    alignment: Any = None
    model_log_probs: tuple[float, ...] = ()


class Translator:
    """Recurrent translation models of Nematus, Amun and Marian, one or an ensemble, optionally with an n-gram model.

    models        .npz files, one or several
    source_vocab  vocabulary of the source: JSON, YAML or a word a line; a list for the factors of a word, or for the
                  columns of a line between tabs
    target_vocab  vocabulary of the target; an ensemble has one
    weights       weights of the models' log-probabilities; None: 1 each
    bpe           byte pair codes that split source words; results are joined. None: words are not split here
    lm            n-gram model: a model file, an ARPA file, or an `ng.Model` on the same device
    lm_weight     weight of its log-probabilities
    dtype         "float32"; "tf32": a GPU rounds the factors of products to TF32 (10 bits); "float16", on a GPU also
                  for states and products; "bfloat16": weights are rounded to it, and products are those of "tf32".
                  A CPU computes in float32, so all dtypes take the same time there
    device        "auto" (a GPU if there is one), "cpu" or "gpu"
    options       the other settings of `DecodeConfig` for files: debpe, columns, softmax_filter, first_words,
                  most_translations, table_bytes

    A sentence is a string of words separated by spaces. Raises InputError for files that are damaged or do not
    fit each other.

    >>> import mgpu_ngram as ng
    >>> files = {"source_vocab": "examples/g2p/letters.json", "target_vocab": "examples/g2p/phonemes.json"}
    >>> translator = ng.Translator("examples/g2p/model.npz", **files, device="cpu")
    >>> for best in translator.translate("r e a d", beam_size=5, n_best=2):
    ...     print(f"{best.text}  {best.score:.2f}")
    R EH1 D  -0.50
    R IY1 D  -1.09
    >>> [best] = translator.score(["r e a d"], ["R IY1 D"])
    >>> print(f"{best.log_prob:.2f}")
    -1.09
    """

    def __init__(
        self,
        models: str | Path | Sequence[str | Path],
        source_vocab: Any,
        target_vocab: str | Path,
        *,
        weights: Sequence[float] | None = None,
        bpe: str | Path | Sequence[str | Path] = (),
        lm: str | Path | Model | None = None,
        lm_weight: float = 0.2,
        dtype: str = "float32",
        device: str = "auto",
        **options: Any,
    ):
        _check_names(options, FILE_OPTIONS, "Translator")
        self.device = resolve_device(device)
        held = lm if isinstance(lm, Model) else None
        if held is not None and held.device != self.device:
            raise InputError(
                f"the n-gram model is on the {held.device.upper()} but the translator on the {self.device.upper()}; "
                f"load it with device={self.device!r}"
            )
        path = lm if held is None else held.path
        given = {
            "models": _paths(models), "source_vocab": _paths(source_vocab), "target_vocab": str(target_vocab),
            "bpe": _paths(bpe), "lm": None if path is None else str(path), "weights": _numbers(weights),
            "lm_weight": lm_weight, "dtype": dtype, "text": [], **options,
        }  # fmt: skip
        self._config = fill(DecodeConfig, given, "Translator")
        check_weights((*self._config.weights, self._config.lm_weight))
        if lm is None and self._config.lm_weight != DecodeConfig.lm_weight:
            raise InputError(f"lm_weight is {lm_weight:g} but there is no n-gram model; give lm, or leave it out")
        self._files_alone = held is None or held.path is not None
        self._parts = len(self._config.models) + (lm is not None)
        here = None if held is None else held._next_word_model
        self._translation = open_translation(
            files_of(self._config), self.device, dtype, cpu_cores(), here, self._config.table_bytes
        )

    def __repr__(self) -> str:
        models = ", ".join(f"{model.parameters:,} parameters" for model in self._translation.models)
        return f"<Translator of {len(self._config.models)} models ({models}), {self._translation.vocab_size:,} words>"

    def translate(
        self,
        sentences: str | Iterable[str],
        *,
        beam_size: int = 1,
        n_best: int = 1,
        prefixes: str | Iterable[str] | None = None,
        alignments: bool = False,
        client: Any = None,
        **options: Any,
    ) -> Any:
        """Return the best results of each sentence, best first: a list of `Translated`; for one string, its list.

        beam_size   number of hypotheses of a sentence, 1 to 64
        n_best      number of results of a sentence, at most beam_size
        prefixes    first words of the results of each sentence, in the model's words or pieces
        alignments  whether results have attention weights
        client      a `distributed.Client`, whose workers load the same files; None: this process, on a CPU with a
                    thread for each core. Results do not depend on the number of workers
        options     the other settings of `DecodeConfig` for a search, with its defaults: length_penalty, word_penalty,
                    max_length (200 words of a sentence are read; 0: all), max_length_multiple (2), max_steps,
                    allow_unk, early_stopping ("amun", "first", "bound"), sample with top_k, top_p, temperature and
                    seed, mini_batch (sentences searched at once), mini_batch_words, batching

        With sample=True, results are beam_size draws, which depend only on the seed and the sentence's number. An empty
        sentence has one result, without words, of score 0. Raises InputError for settings and sentences that cannot be
        used, RunError for NaN, with the sentence.
        """
        if n_best == 0:
            raise InputError("n_best is 0 but must be 1 or more")
        one = isinstance(sentences, str)
        lines = _lines([sentences] if one else sentences, "sentences")
        first = None if prefixes is None else _lines([prefixes] if one else prefixes, "prefixes")
        config = self._search_config(options, "translate", beam_size=beam_size, n_best=n_best, alignments=alignments)
        found = self._find(config, lines, first, None, client)
        results = [[self._translated(hypothesis) for hypothesis in best] or [NO_TRANSLATION] for best in found]
        return results[0] if one else results

    def score(
        self,
        sentences: str | Iterable[str],
        targets: str | Iterable[str],
        *,
        alignments: bool = False,
        client: Any = None,
        **options: Any,
    ) -> Any:
        """Return a `Translated` for the given translation of each sentence, forced decoding; for one string, one.

        targets  translations, in the model's words or pieces; a word that the target vocabulary lacks is <unk>

        The other arguments are those of `translate`; of the options length_penalty, word_penalty, max_length,
        mini_batch, mini_batch_words and batching. Probabilities are -inf where a shortlist leaves a word out.
        """
        one = isinstance(sentences, str)
        lines, wanted = (
            _lines([given] if one else given, name) for given, name in ((sentences, "sentences"), (targets, "targets"))
        )
        config = self._search_config(options, "score", alignments=alignments)
        found = self._find(config, lines, None, wanted, client)
        results = [
            self._translated(best[0] if best else self._impossible(target))
            for best, target in zip(found, wanted, strict=True)
        ]
        return results[0] if one else results

    def _search_config(self, options: dict[str, Any], where: str, alignments: bool, **given: Any) -> DecodeConfig:
        """Return the settings of a call."""
        _check_names(options, OF_SEARCH, where)
        if alignments and not self._translation.has_attention:
            name = self._translation.models[0].name
            raise InputError(f"{name!r} has no attention and therefore no alignments; leave alignments out")
        same = {name: getattr(self._config, name) for name in DecodeConfig.__dataclass_fields__}
        values = {"n_best": 1, "alignment": "hard" if alignments else "none", **given, **options}
        return fill(DecodeConfig, same | values, where)

    def _find(
        self, config: DecodeConfig, lines: list[str], first: list[str] | None, wanted: list[str] | None, client: Any
    ) -> list[list[Hypothesis]]:
        """Return the results of all lines."""
        for name, given in (("prefixes", first), ("targets", wanted)):
            if given is not None and len(given) != len(lines):
                raise InputError(f"there are {len(lines)} sentences but {len(given)} {name}; give one for each")
        if client is None and self.device == "gpu":
            return find_results(0, lines, first, wanted, self._options(config, {}, cpu_cores()), self._translation)
        if client is not None and not self._files_alone:
            raise InputError("workers load an n-gram model from its file, but this one was not loaded; give lm=PATH")
        executor = executor_of(self.device, client)
        here = self._translation if client is None else None
        try:
            options = self._options(config, {} if here else self._identity, executor.threads)
            options = replace(options, device=executor.device)
            size = sentences_of_task(config, len(lines), executor.device)

            def calls() -> Iterator[Handle]:
                for at in range(0, len(lines), size):
                    parts = [None if given is None else given[at : at + size] for given in (lines, first, wanted)]
                    label = f"the translation of sentences {at + 1:,} to {min(at + size, len(lines)):,}"
                    yield executor.call(find_results, at, *parts, options, here, label=label)

            return [results for block in in_order(executor, calls(), AHEAD * executor.workers) for results in block]
        finally:
            executor.close()

    def _options(self, config: DecodeConfig, identity: dict[str, str], threads: int) -> DecodeOptions:
        options = options_of(config, identity, self.device, threads)
        return replace(options, search=replace(options.search, breakdown=self._parts > 1))

    @cached_property
    def _identity(self) -> dict[str, str]:
        """The identity of the model files; workers compare it with the identity of their files."""
        return files_of(self._config).identity()

    def _translated(self, found: Hypothesis) -> Translated:
        target, join = self._translation.target, bool(self._config.bpe) and self._config.debpe
        return Translated(
            text_of(found, target, join),
            tuple(target.decode(found.words)),
            found.score,
            found.cost,
            found.word_scores,
            found.alignment_LT,
            found.parts,
        )

    def _impossible(self, target: str) -> Hypothesis:
        words = (*self._translation.encode_target(target).tolist(), self._translation.target.eos)
        return Hypothesis.impossible(words, self._parts if self._parts > 1 else 0)


NO_TRANSLATION = Translated("", (), 0.0, 0.0, ())


def _paths(given: Any) -> list[Any]:
    """Return paths, one or several or nested, as lists of str."""
    if isinstance(given, (str, Path)):
        return [str(given)]
    if not isinstance(given, Iterable):
        raise InputError(f"{given!r} is not a path; give a path or a list of paths")
    return [str(item) if isinstance(item, (str, Path)) else _paths(item) for item in given]


def _numbers(given: Any) -> Any:
    """Return a list of weights; a single number unchanged."""
    if given is None:
        return []
    return list(given) if isinstance(given, Iterable) else given


def _lines(given: Any, name: str) -> list[str]:
    """Return sentences without their newlines."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"{name} is {given!r} but must be a list of strings, one for each sentence")
    lines = list(given)
    wrong = next((i for i, line in enumerate(lines) if not isinstance(line, str)), None)
    if wrong is not None:
        raise InputError(f"{name}[{wrong}] is {lines[wrong]!r} but must be a string of words; join them with spaces")
    return [line.rstrip("\r\n") for line in lines]


def _check_names(options: dict[str, Any], known: Sequence[str], where: str) -> None:
    for name in options:
        if name not in known:
            raise InputError(f"{where}: unknown argument {name!r}; known: {', '.join(known)}")
