"""A slow search over the outputs of CTC on strings, by the rules of docs/ctc.md."""

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from mgpu_ngram import kenlm

LEAST = math.log(1e-15)


@dataclass(frozen=True)
class Beam:
    words: tuple = ()
    part: str = ""
    last: str | None = None
    closed: bool = False  # whether the unfinished word has ended
    times: tuple = ()
    time: tuple = (-1, -1)
    logit: float = 0.0

    def finished(self):
        if not self.part:
            return self
        return replace(self, words=(*self.words, self.part), times=(*self.times, self.time), part="", time=(-1, -1))


class PlainSearch:
    """labels: "" is the blank; pieces: whether "▁" begins words, else " " ends them."""

    def __init__(self, labels, pieces, arpa=None, unigrams=None, alpha=0.5, beta=1.5, unknown=-10.0, boundary=True):
        self.labels, self.pieces, self.boundary = labels, pieces, boundary
        self.alpha, self.beta, self.unknown = alpha, beta, unknown
        self.model = kenlm.Model(str(arpa)) if arpa else None
        self.known = {word for word in unigrams or () if self.model and word in self.model}

    def word_scores(self, words, is_last):
        """Return the score of words in turn."""
        if not self.model:
            return 0.0
        state, after, total = kenlm.State(), kenlm.State(), 0.0
        (self.model.BeginSentenceWrite if self.boundary else self.model.NullContextWrite)(state)
        for i, word in enumerate(words):
            score = self.model.BaseScore(state, word, after)
            if word not in self.model or (self.known and word not in self.known):
                score += self.unknown
            if is_last and i == len(words) - 1 and self.boundary:
                score += self.model.BaseScore(after, "</s>", kenlm.State())
            total += self.alpha * score / math.log10(math.e) + self.beta
            state, after = after, kenlm.State()
        return total

    def part_score(self, part, hot, weight):
        lengths = [len(word) for word in hot if word.startswith(part)]
        if not part or lengths:
            return weight * len(part) / min(lengths) if part else 0.0
        if not self.model or any(word.startswith(part) for word in self.known):
            return 0.0
        return self.unknown * max(1, len(part) / 6)

    def extended(self, beam, label, t):
        if label in ("", beam.last):
            return replace(beam, last=label, time=(beam.time[0], t + 1) if label else beam.time)
        if label == " " and not self.pieces:
            return replace(beam.finished(), last=label)
        starts, closes = self.pieces and label[0] == "▁", self.pieces and len(label) > 1 and label[-1] == "▁"
        if starts or beam.closed:
            beam = beam.finished()
        time = (t if beam.time[0] < 0 or starts else beam.time[0], t + 1)
        text = label.strip("▁") if self.pieces else label
        return replace(beam, part=beam.part + text, last=label, closed=closes, time=time)

    def pruned(self, beams, total, options):
        """Merge equal beams, the last of which gives its times; keep the best."""
        groups = defaultdict(list)
        for beam in beams:
            groups[beam.words, beam.part, beam.last, beam.closed].append(beam)
        merged = []
        for group in groups.values():
            top = max(beam.logit for beam in group)
            logit = top + math.log(sum(math.exp(beam.logit - top) for beam in group))
            merged.append(replace(group[-1], logit=logit))
        totals = [total(beam) for beam in merged]
        ranked = sorted(range(len(merged)), key=lambda i: -totals[i])
        likely = [i for i in ranked if totals[i] >= max(totals) + options["beam_prune_logp"]]
        return [(merged[i], totals[i]) for i in likely[: options["beam_width"]]]

    def __call__(self, rows, hot=(), weight=10.0, **options):
        """Return [(text, words with times, logit score, score)], the best first."""
        hot = " ".join(hot).split()

        def total(beam):
            scores = self.word_scores(beam.words, False) + weight * sum(word in hot for word in beam.words)
            return beam.logit + scores + self.part_score(beam.part, hot, weight)

        def last_total(beam):
            return beam.logit + self.word_scores(ends[beam], True) + weight * sum(word in hot for word in beam.words)

        beams = [Beam()]
        for t, row in enumerate(rows):
            row = [min(max(p, LEAST), 0.0) for p in row]
            tokens = [v for v, p in enumerate(row) if p >= options["token_min_logp"] or v == row.index(max(row))]
            made = [
                replace(self.extended(beam, self.labels[v], t), logit=beam.logit + row[v])
                for v in tokens
                for beam in beams
            ]
            beams = [beam for beam, _ in self.pruned(made, total, options)]
            if options["prune_history"]:
                seen = {}
                for beam in beams:
                    history = beam.words[-max(1, self.model.order - 1 if self.model else 0) :]
                    seen.setdefault((history, beam.part, beam.last, beam.closed), beam)
                beams = list(seen.values())
        made, ends = [], {}
        for beam in beams:
            done = replace(beam.finished(), last=None, closed=False)
            made.append(done)
        merged = self.pruned(made, lambda beam: beam.logit, {"beam_prune_logp": -1e9, "beam_width": len(made)})
        for done, _ in merged:  # the last of equal texts says which word is the last one, perhaps an empty one
            from_beam = [beam for beam, other in zip(beams, made, strict=True) if other.words == done.words][-1]
            ends[done] = (*from_beam.words, from_beam.part)
        ranked = sorted(
            ((beam, last_total(beam)) for beam, _ in self.in_order(merged, made)), key=lambda pair: -pair[1]
        )
        best = ranked[0][1]
        kept = [(b, s) for b, s in ranked if s >= best + options["beam_prune_logp"]]
        return [
            (" ".join(b.words), [(w, *time) for w, time in zip(b.words, b.times, strict=True)], b.logit, s)
            for b, s in kept
        ]

    @staticmethod
    def in_order(merged, made):
        order = {beam.words: i for i, beam in reversed(list(enumerate(made)))}
        return sorted(merged, key=lambda pair: order[pair[0].words])
