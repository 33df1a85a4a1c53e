"""`mgpu-ngram lda` for a user: what it prints, how it resumes, and one clear line for each error."""

import gzip
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import yaml
import zstandard
from sklearn.feature_extraction.text import CountVectorizer

import mgpu_ngram as ng
from mgpu_ngram.core.bags.topic_model import describe_topic_model, load_topic_model
from mgpu_ngram.jobs.lda import run as job
from mgpu_ngram.jobs.lda import train

TEXT = "".join(f"word{20 * (d % 4) + d % 20:02} Word{20 * (d % 4) + d % 7:02} x\n" for d in range(200))
UCI = "3\n4\n4\n1 1 2\n1 2 1\n2 3 1\n3 4 5\n"


@pytest.fixture
def lda(tmp_path, monkeypatch, mgpu_ngram):
    """Return lda(words) -> (status, stdout, stderr), in a folder with docs.txt."""
    monkeypatch.chdir(tmp_path)
    Path("docs.txt").write_text(TEXT)
    return lambda words: mgpu_ngram("lda", *words.split(), "--workers", "0")


def test_a_model_as_text_and_as_json(lda):
    status, out, err = lda("docs.txt -o text --topics 4 --sweeps 3 --coherence --optimise-every 2 --held-out 0.1")
    assert (status, err) == (0, ""), err
    lines = out.splitlines()
    # 20 words in lower case, 28 with a capital, 7 of them the same; x is too short
    drawn, held_out = (int(lines[0].split(after)[0].split()[-1]) for after in (" tokens of", " tokens held"))
    start = "text: 4 topics of 41 words, 3 sweeps over"
    assert lines[0] == f"{start} {drawn} tokens of 200 documents, {held_out} tokens held out"
    assert drawn + held_out == 400 and 0 < held_out < 100
    assert drawn == load_topic_model("text/model.safetensors").tokens
    assert " tokens/s" in lines[1] and "; held-out perplexity " in lines[2] and lines[3].startswith("coherence: NPMI ")
    status, out, err = lda("docs.txt -o json --topics 4 --sweeps 3 --no-lowercase --max-features 30 --json")
    found = json.loads(out)
    assert (status, err, found["words"], found["documents"], found["sweeps"]) == (0, "", 30, 200, 3)
    assert found["metrics"].keys() >= {"joint", "plugin", "perplexity"} and found["path"].endswith("json")


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("", {}),
        ("--no-lowercase", {"lowercase": False}),
        ("--token-pattern [a-z]+\\d", {"token_pattern": r"[a-z]+\d"}),
        ("--stop-words stop.txt", {"stop_words": ["word00", "word21"]}),
        ("--min-df 16", {"min_df": 16}),
        ("--min-df 0.03", {"min_df": 0.03}),
        ("--max-df 10", {"max_df": 10}),
        ("--max-df 0.03", {"max_df": 0.03}),
        ("--max-df 1.0", {"max_df": 1.0}),
        ("--max-df 5e-1", {"max_df": 0.5}),
        ("--min-df 1", {"min_df": 1}),
        ("--max-features 12", {"max_features": 12}),
    ],
)
def test_text_options_are_those_of_scikit_learn(flags, options, lda):
    text = TEXT + "".join(f"word{n:02}\n" * n for n in range(41))  # the 12th word has 33 tokens, the 13th 32
    Path("docs.txt").write_text(text)
    Path("stop.txt").write_text("word00\nword21\n")
    status, _, err = lda(f"docs.txt -o out --topics 2 --sweeps 1 {flags}")
    assert (status, err) == (0, "")
    model = load_topic_model("out/model.safetensors")
    vectorizer = CountVectorizer(**options)
    tokens_V = vectorizer.fit_transform(text.splitlines()).sum(0).tolist()[0]
    assert len(tokens_V) > 1
    assert list(zip(model.words, model.counts_VZ().sum(1), strict=True)) == list(
        zip(vectorizer.get_feature_names_out(), tokens_V, strict=True)
    )


def test_one_document_and_all_documents(lda, mgpu_ngram):
    """1 is one document, 1.0 all of them, in Python, in YAML and on the command line, which says which one it takes."""
    Path("docs.txt").write_text("all apple bus\nall apple car\nall road\n")
    one, everywhere = ["bus", "car", "road"], ["all"]
    for flags, words, told in (
        ("--max-df 1", one, "max_df is 1, so only words of one document are kept; write 1.0 for words of any number"),
        ("--max-df 1.0", ["all", "apple", *one], None),
        ("--max-df 2", ["apple", *one], None),
        ("--min-df 1", ["all", "apple", *one], None),
        ("--min-df 1.0", everywhere, "min_df is 1.0, so only words of all documents are kept; write 1 for words of"),
    ):
        name, limit = flags[2:].replace("-", "_").split()
        job = {"corpus": "docs.txt", "topics": 2, "sweeps": 1, name: yaml.safe_load(limit)}
        settings = {"output": "runs", "cluster": {"workers": 0}, "jobs": [{"lda": job}]}
        Path("job.yaml").write_text(yaml.safe_dump(settings))
        of_lda = f"lda docs.txt -o out --topics 2 --sweeps 1 --overwrite {flags}".split()
        for command, folder in (of_lda, "out"), (["run", "job.yaml", "--overwrite"], "runs/lda"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert mgpu_ngram(*command)[0] == 0
            assert [str(found.message).startswith(told or " ") for found in caught] == [True] * bool(told)
            assert sorted(load_topic_model(f"{folder}/model.safetensors").words) == sorted(words)
        estimator = ng.LDA(2, max_iter=1, random_state=1, **{name: yaml.safe_load(limit)})
        assert sorted(estimator.fit(Path("docs.txt").read_text().splitlines()).words_) == sorted(words)


def test_priors_are_those_of_python(lda, mgpu_ngram):
    seeds = "2: [word00, word45]\n0: {word21: 75e-1}\n3: word45\n"  # of YAML, 75e-1 is a text
    Path("seeds.yaml").write_text(seeds)
    status, _, err = lda("docs.txt -o out --topics 4 --sweeps 3 --alpha 0.1,0.2,0.3,0.4 --seeds seeds.yaml")
    assert (status, err) == (0, "")
    alpha = [0.1, 0.2, 0.3, 0.4]
    job = {"corpus": "docs.txt", "topics": 4, "sweeps": 3, "alpha": alpha, "seeds": yaml.safe_load(seeds)}
    Path("job.yaml").write_text(yaml.safe_dump({"output": "runs", "cluster": {"workers": 0}, "jobs": [{"lda": job}]}))
    assert mgpu_ngram("run", "job.yaml")[0] == 0
    python = {"word45": [2, 3], "word21": {0: 7.5}, "word00": 2}
    estimator = ng.LDA(4, max_iter=3, random_state=1, doc_topic_prior=alpha, topic_word_prior=0.01, seeds=python)
    estimator.fit(TEXT.splitlines()).save("python.safetensors")
    expected = Path("python.safetensors").read_bytes()
    assert Path("out/model.safetensors").read_bytes() == expected
    assert Path("runs/lda/model.safetensors").read_bytes() == expected
    described = describe_topic_model("python.safetensors")
    assert described["settings"]["alpha"] == alpha and described["seed_words"] == 3
    assert ng.LDA.load("out").doc_topic_prior == alpha


def test_the_paper_s_rule_is_that_of_python(lda):
    for flags, excluded in ("", True), ("--include-self", False):
        assert lda(f"docs.txt -o out{excluded} --topics 4 --sweeps 3 --alpha 12.5,12.5,12.5,12.5 {flags}")[0] == 0
        estimator = ng.LDA(4, max_iter=3, random_state=1, topic_word_prior=0.01, exclude_self=excluded)
        estimator.set_params(doc_topic_prior=[12.5] * 4).fit(TEXT.splitlines()).save(f"{excluded}.lda")
        assert Path(f"out{excluded}/model.safetensors").read_bytes() == Path(f"{excluded}.lda").read_bytes()
    theirs, ours = (load_topic_model(f"{excluded}.lda").counts_VZ() for excluded in (False, True))
    assert (theirs != ours).any()


def test_a_run_of_other_documents_or_settings_is_not_resumed(lda, monkeypatch):
    def interrupt(sweep, metrics):
        """Stop after two sweeps, each of which has written a snapshot."""
        if sweep == 2:
            raise KeyboardInterrupt

    for topic in 1, 2:
        Path(f"seeds{topic}.yaml").write_text(f"{topic}: word00\n")
    words = "docs.txt -o out --topics 4 --sweeps 9 --evaluate-every 1 --checkpoint-seconds 0 --seeds seeds1.yaml"
    original = job.train
    monkeypatch.setattr(job, "train", lambda *args, **how: original(*args, **how | {"callback": interrupt}))
    status, _, err = lda(words)
    assert status and err.startswith("mgpu-ngram: interrupted; ") and not Path("out").exists()
    monkeypatch.setattr(job, "train", original)
    Path("other.txt").write_text(TEXT[:-100])
    for changed, message in [
        (words.replace("docs", "other") + " --resume", 'inputs.0.name was "docs.txt", is "other.txt"'),
        (words.replace("--topics 4", "--topics 5") + " --resume", "options.topics was 4, is 5"),
        (words + " --alpha 0.1,0.2,0.3,0.4 --resume", "options.alpha.0 was absent, is 0.1"),
        (words.replace("seeds1", "seeds2") + " --resume", 'options.seeds.2 was absent, is "word00"'),
        (words, "holds an unfinished run"),
    ]:
        status, out, err = lda(changed)
        assert (status, out, err.count("\n")) == (2, "", 1) and message in err, err
    assert lda(words.replace("-o out", "-o new") + " --resume")[2].startswith("mgpu-ngram: nothing to resume: ")


@pytest.fixture
def awkward(lda, tmp_path):
    """A folder of inputs that cannot be used."""
    counts = sp.csr_array(np.array([[2, 0, 1], [0, 3, 0]]))
    for name, value in ("fraction", 0.5), ("negative", -1), ("nan", np.nan), ("infinite", np.inf):
        matrix = counts.astype(float)
        matrix.data[1] = value
        sp.save_npz(f"{name}.npz", matrix)
    sp.save_npz("counts.npz", counts)
    sp.save_npz("empty.npz", 0 * counts)
    whole = Path("counts.npz").read_bytes()
    compressed = {"gz": gzip.compress(TEXT.encode()), "zst": zstandard.compress(TEXT.encode())}
    files = {
        "cut.npz": whole[: len(whole) // 2],
        "zeroed.npz": b"\0\0" + whole[2:],
        **{f"cut.txt.{name}": data[: len(data) // 2] for name, data in compressed.items()},
        "docword.cut.txt": UCI[:-6].encode(),
        "docword.one.txt": b"3\n",
        "docword.none.txt": b"",
        "docword.many.txt": b"3\n4000000000\n1\n1 1 1\n",
        "docword.two.txt.gz": gzip.compress(b"3\n4"),
        "docword.headless.txt": b"10 61 20\n11 62 30\n12 63 40\n",
        "docword.minus.txt": f"-{UCI}".encode(),
        "docword.text.txt": b"30\nsome\nwords\n10 61 20\n",
        "array.json": b' [{"text": "a b"},\n{"text": "b"}]\n',
        "array.json.zst": zstandard.compress(b'[{"text": "a b"},\n{"text": "b"}]\n'),
        "comma.jsonl": b'{"text": "a b"},\n{"text": "b"}\n',
        "quotes.ndjson.gz": gzip.compress(b"{'text': 'a b'}\n"),
        "docword.fraction.txt": UCI.replace("3 4 5", "3 4 0.5").encode(),
        "docword.negative.txt": UCI.replace("3 4 5", "3 4 -5").encode(),
        "docword.word.txt": UCI.replace("3 4 5", "3 5 5").encode(),
        "empty.txt": b"",
        "blank.txt": b"\n\n",
        "bad.jsonl": b'{"text": "a b"}\n{"text": "a\n',
        "number.jsonl": b'{"text": 3}\n',
        "two.txt": b"a\nb\n",
        "twice.txt": b"a\nb\na\n",
        "unknown.yaml": b"0: [word00, wrod01]\n",
        "outside.yaml": b"2: word00\n",
        "negative.yaml": b"1: {word00: -1}\n",
        "true.yaml": b"1: {word00: true}\n",
        "nan.yaml": b"1: {word00: .nan}\n",
        "number.yaml": b"1: [[word00], 1]\n",
        "words.yaml": b"word00: 1\n",
        "list.yaml": b"[word00]\n",
    }
    for name, data in files.items():
        Path(name).write_bytes(data)
    Path("folder").mkdir()
    return tmp_path


COUNTS = "but counts are whole numbers from 0 to 4,294,967,295"
REFUSED = [
    ("fraction.npz", f"document 0 of 'fraction.npz' has the count 0.5, {COUNTS}"),
    ("negative.npz", f"Negative values in data: document 0 of 'negative.npz' has the count -1.0, {COUNTS}"),
    ("nan.npz", f"document 0 of 'nan.npz' has the count NaN, {COUNTS}"),
    ("infinite.npz", f"document 0 of 'infinite.npz' has the count inf, {COUNTS}"),
    ("empty.npz", "'empty.npz' has 2 documents but no word in them; give at least one document with a word"),
    ("cut.npz", "'cut.npz' is a damaged .npz file"),
    ("zeroed.npz", "'zeroed.npz' is a damaged .npz file"),
    ("counts.npz --vocabulary two.txt", "the vocabulary has 2 words but 'counts.npz' has 3 columns"),
    ("counts.npz --vocabulary twice.txt", "words 0 and 2 of the vocabulary are both 'a'; give each word once"),
    ("counts.npz --vocabulary none.txt", "input 'none.txt' does not exist or holds no file"),
    ("counts.npz --stop-words english", "stop_words is set but 'counts.npz' is a matrix of counts, not text"),
    ("counts.npz --text-column body", "text_column is 'body' but 'counts.npz' is a matrix of counts, not text; leave"),
    ("docs.txt --text-column body", "text_column is 'body' but 'docs.txt' is plain text, without columns; leave"),
    ("docs.txt counts.npz", "'docs.txt' is a file of documents but 'counts.npz' is a sparse matrix"),
    ("docword.cut.txt", "'docword.cut.txt' ends after line 6 with 3 of the 4 pairs that line 3 gives"),
    ("docword.one.txt", "'docword.one.txt' line 2 is missing, but a docword file starts with the numbers of"),
    (
        "docword.many.txt",
        "the totals of 4,000,000,000 words take 96,000,000,000 bytes but 1,000,000,000 are free; give",
    ),
    ("docword.none.txt", "'docword.none.txt' line 1 is missing, but a docword file starts with the numbers of"),
    ("docword.two.txt.gz", "'docword.two.txt.gz' line 3 is missing, but a docword file starts with the numbers of"),
    ("docword.headless.txt", "'docword.headless.txt' line 1 is '10 61 20', but a docword file starts with the numbers"),
    ("docword.minus.txt", "'docword.minus.txt' line 1 is '-3', but a docword file starts with the numbers of"),
    ("docword.text.txt", "'docword.text.txt' line 2 is 'some', but a docword file starts with the numbers of"),
    (
        "array.json.zst",
        "'array.json.zst' holds a JSON array, which is not read; give JSON lines, an object a line: zstd",
    ),
    ("comma.jsonl", "'comma.jsonl' at byte 0 is not a JSON object: Extra data; correct the line, or leave it out"),
    ("quotes.ndjson.gz", "'quotes.ndjson.gz' at byte 0 is not a JSON object; correct the line, or rename"),
    ("array.json", "'array.json' holds a JSON array, which is not read; give JSON lines, an object a line: jq"),
    ("docword.fraction.txt", f"'docword.fraction.txt' line 7 has the count '0.5', {COUNTS}"),
    ("docword.negative.txt", f"'docword.negative.txt' line 7 has the count '-5', {COUNTS}"),
    ("docword.word.txt", "'docword.word.txt' line 7 has word 5, but line 2 says 4 words, from 1 on"),
    ("cut.txt.zst", "'cut.txt.zst' is truncated zstd data"),
    ("empty.txt", "'empty.txt' is empty; give at least one document with a word"),
    ("blank.txt", "'blank.txt' has no word in its 2 documents; lower min_df, raise max_df"),
    ("bad.jsonl", "'bad.jsonl' at byte 16 is not a JSON object"),
    ("number.jsonl", "'number.jsonl' at byte 0 has 3 in 'text'; give a text, or a list of str"),
    ("folder", "input 'folder' is a directory without files"),
    ("none.txt", "input 'none.txt' does not exist or holds no file"),
    ("-", "documents are read more than once, so standard input cannot be used"),
    ("docs.txt --topics 0", "topics is 0 but must be at least 1"),
    ("docs.txt --max-df 10.0", "max_df is 10.0 but must be a whole number from 1 on, or a share from 0.0 to 1.0"),
    ("docs.txt --max-df 0", "max_df is 0 but must be a whole number from 1 on, or a share from 0.0 to 1.0"),
    ("docs.txt --topics 65537", "topics is 65,537 but must be at most 65,536"),
    ("docs.txt --min-df 1000", "fewer than min_df 1000; raise max_df or lower min_df"),
    ("docs.txt --token-pattern (", "token_pattern '(' is not a regular expression: missing )"),
    ("docs.txt --topics 3 --alpha 1,2", "alpha is a list of length 2 but must be one number, or a list of 3"),
    ("docs.txt --topics 2 --alpha 1,-2", "alpha is -2.0 for topic 1 but must be above 0"),
    ("docs.txt --topics 2 --alpha nan,2", "alpha is nan for topic 0 but must be above 0"),
    ("docs.txt --topics 2 --alpha 1e7,2", "alpha sums to 10,000,002 but must sum to 8,388,608 at most"),
    ("docs.txt --topics 2 --alpha 1,x", "argument --alpha: invalid numbers value: '1,x'"),
    ("docs.txt --seeds unknown.yaml", "the seed word 'wrod01' is not in the vocabulary; leave it out"),
    ("docs.txt --topics 2 --seeds outside.yaml", "'word00' has the topic 2 with the weight 100.0; topics are 0 to 1"),
    ("docs.txt --seeds negative.yaml", "the weight -1; topics are 0 to 99, weights are above 0, 1,000,000 at most"),
    ("docs.txt --seeds true.yaml", "the weight True; topics are 0 to 99, weights are above 0, 1,000,000 at most"),
    ("docs.txt --stop-words german", "stop_words is 'german', but the only list here is english, and no file has this"),
    ("docs.txt --seeds nan.yaml", "the weight nan; topics are 0 to 99, weights are above 0, 1,000,000 at most"),
    ("docs.txt --seeds number.yaml", "seeds has the word ['word00'] of topic 1, which is not a str; put it in quotes"),
    ("docs.txt --seeds words.yaml", "seeds has the topic 'word00'; give topics and their words, such as 3: [decimal,"),
    ("docs.txt --seeds list.yaml", "list.yaml: is of type list but must be a mapping of topics to words"),
    ("docs.txt --seeds none.yaml", "none.yaml: cannot be read (No such file or directory)"),
    ("docs.txt --held-out 0.9999", "held_out is 0.9999, which leaves no tokens to train on; lower it"),
]


def test_wrong_input_gets_one_line(awkward, lda, monkeypatch):
    monkeypatch.setattr(train, "free_host_bytes", lambda: 10**9)
    before = {path.name for path in awkward.iterdir()}
    for words, message in REFUSED:
        status, out, err = lda(f"-o out --sweeps 2 {words}")
        assert (status, out) == (2, ""), (words, out)
        assert err.startswith("mgpu-ngram: ") and err.count("\n") == 1 and message in err, (words, err)
        assert {path.name for path in awkward.iterdir()} == before, words


def test_files_of_words_are_looked_for_before_an_earlier_job_trains(lda, mgpu_ngram):
    train = "output: out\ncluster: {workers: 0}\njobs:\n- lda: {corpus: docs.txt, topics: 3, sweeps: 1}\n"
    for setting in "vocabulary", "stop_words":
        Path("run.yaml").write_text(train + f"- lda: {{corpus: docs.txt, {setting}: none.txt, name: other}}\n")
        for verb in "plan", "run":
            status, out, err = mgpu_ngram(verb, "run.yaml")
            assert (status, out) == (2, "") and "input 'none.txt' does not exist or holds no file" in err, err
            assert err.count("\n") == 1 and not Path("out").exists()


def test_outputs_that_are_not_replaced(awkward, lda):
    Path("counts").mkdir()
    Path("counts/manifest.json").write_text('{"format": "mgpu_ngram counts"}')
    for words, message in [
        ("-o folder", "folder exists; add --overwrite"),
        ("-o folder --overwrite", "folder exists and is not an output of mgpu_ngram"),
        ("-o two.txt --overwrite", "two.txt exists and is not an output of mgpu_ngram"),
        ("-o docs.txt --overwrite", "output docs.txt is an input of this run"),
        ("-o counts --overwrite", "counts holds mgpu_ngram counts, not mgpu_ngram topics; delete it yourself or give"),
    ]:
        status, _, err = lda(f"docs.txt --sweeps 2 {words}")
        assert status == 2 and err.count("\n") == 1 and message in err, err
    assert Path("docs.txt").read_text() == TEXT and not list(Path("folder").iterdir())
