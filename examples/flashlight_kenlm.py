"""A language model for the decoders of flashlight-text, from mgpu_ngram.kenlm.

flashlight-text links the C++ library of KenLM, so a Python module cannot take its place. The decoders also accept a
language model in Python. KenLM takes the arguments of flashlight.lib.text.decoder.kenlm.KenLM and gives its scores.
"""

from flashlight.lib.text.decoder import LM, LMState
from flashlight.lib.text.dictionary import Dictionary

from mgpu_ngram import kenlm


class KenLM(LM):
    """A language model of one decoder: each start of a sentence forgets the states of the sentence before."""

    def __init__(self, path: str, usr_token_dict: Dictionary):
        """Load an ARPA file or a model file for the words of a dictionary."""
        super().__init__()
        self._model = kenlm.Model(path)
        self._words = {index: usr_token_dict.get_entry(index) for index in range(usr_token_dict.index_size())}
        self._states: dict[LMState, kenlm.State] = {}  # an LMState has no room for a state of its own

    def start(self, start_with_nothing: bool) -> LMState:
        """Return the empty history, or the beginning of a sentence."""
        state = kenlm.State()
        if start_with_nothing:
            self._model.NullContextWrite(state)
        else:
            self._model.BeginSentenceWrite(state)
        first = LMState()
        self._states = {first: state}
        return first

    def score(self, state: LMState, usr_token_idx: int) -> tuple[LMState, float]:
        """Return the state after a word of the dictionary, and the word's log10 probability."""
        return self._score(state, usr_token_idx, self._words[usr_token_idx])

    def finish(self, state: LMState) -> tuple[LMState, float]:
        """Return the state after </s>, and its log10 probability."""
        return self._score(state, -1, "</s>")

    def _score(self, state: LMState, index: int, word: str) -> tuple[LMState, float]:
        # The decoder merges hypotheses with the same LMState: child returns the same one for the same words.
        after, next_state = state.child(index), kenlm.State()
        prob_log10 = self._model.BaseScore(self._states[state], word, next_state)
        self._states[after] = next_state
        return after, prob_log10
