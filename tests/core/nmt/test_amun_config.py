"""Config files of Amun: each option becomes a setting, or is refused in one line."""

import gzip
from pathlib import Path

import pytest
import yaml

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nmt.amun_config import amun_settings, placement_of, read_amun, weight_lines

SCORERS = {"F1": {"path": "b.npz", "type": "Nematus", "tab": 1}, "F0": {"path": "a.npz"}}


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Return config(options): the path of a config file."""
    monkeypatch.chdir(tmp_path)

    def write(options, name="amun.yml"):
        text = options if isinstance(options, str) else yaml.safe_dump(options, sort_keys=False)
        Path(name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return name

    return write


OPTIONS = [
    ({"model": "a.npz"}, {"models": ["a.npz"]}),
    ({"model": ["a.npz", "b.npz"], "weights": {"F1": 0.5}}, {"models": ["a.npz", "b.npz"], "weights": [1, 0.5]}),
    (
        {"scorers": SCORERS, "weights": {"F0": 0.7, "F1": 0.3}},
        {"models": ["a.npz", "b.npz"], "weights": [0.7, 0.3], "columns": [0, 1]},
    ),
    (
        {"scorers": {"x": {"path": "a.npz", "enc-cell": "mlstm", "type": "nematus2"}}, "weights": {"x": 1}},
        {"models": ["a.npz"], "names": ["x"]},
    ),
    ({"scorers": {0: {"path": "a.npz"}}, "weights": {0: 0.5}}, {"models": ["a.npz"], "names": ["0"], "weights": [0.5]}),
    ({"source-vocab": "s.yml", "target-vocab": "t.yml"}, {"source_vocab": ["s.yml"], "target_vocab": "t.yml"}),
    (
        {"source-vocab": [["s", "tags"], "s2"], "target-vocab": ["t"]},
        {"source_vocab": [["s", "tags"], "s2"], "target_vocab": "t"},
    ),
    ({"bpe": "codes"}, {"bpe": ["codes"]}),
    ({"bpe": ["c0", "c1"], "no-debpe": True}, {"bpe": ["c0", "c1"], "debpe": False}),
    ({"debpe": False}, {"debpe": False}),
    ({"debpe": True, "normalize": False, "wipo": False, "allow-unk": False}, {"wipo": False, "allow_unk": False}),
    ({"input-file": "in.txt"}, {"text": ["in.txt"]}),
    ({"beam-size": 12, "normalize": True, "n-best": True}, {"beam_size": 12, "length_penalty": 1, "n_best": 12}),
    ({"n-best": True, "wipo": True}, {"n_best": 1, "wipo": True}),
    ({"max-length": 0, "max-length-multiple": 3}, {"max_length": 0, "max_length_multiple": 3}),
    ({"return-alignment": True}, {"alignment": "hard"}),
    ({"return-soft-alignment": True, "return-alignment": False}, {"alignment": "soft"}),
    ({"return-nematus-alignment": True}, {"alignment": "nematus"}),
    ({"softmax-filter": "lex"}, {"softmax_filter": "lex"}),
    (
        {"softmax-filter": ["lex", 100, "7"]},
        {"softmax_filter": "lex", "first_words": 100, "most_translations": 7},
    ),
    (  # F10 is the eleventh, not the third
        {"model": [f"{i}.npz" for i in range(11)], "weights": {"F2": 0.5}},
        {"models": [f"{i}.npz" for i in range(11)], "weights": [1, 1, 0.5, *[1] * 8]},
    ),
    (
        {"mini-batch": 64, "maxi-batch": 640, "mini-batch-words": 900},
        {"mini_batch": 64, "maxi_batch": 640, "mini_batch_words": 900},
    ),
    ({"mini-batch": 64, "maxi-batch": 0}, {"mini_batch": 64, "maxi_batch": 0}),
    ({"tensor-cores": True, "use-fused-softmax": True}, {"dtype": "float16"}),
    ({"threads": 4, "relative-paths": False, "show-weights": True, "dump-config": True}, {}),
]


@pytest.mark.parametrize(
    ("options", "settings"), OPTIONS, ids=[f"{'+'.join(o)}-{i}" for i, (o, _) in enumerate(OPTIONS)]
)
@pytest.mark.parametrize("name", ["amun.yml", "amun.yml.gz"])
def test_options_become_settings(config, options, settings, name):
    assert amun_settings(read_amun(config(options, name))) == settings


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({}, {}),
        ({"devices": 0}, {"devices": [0]}),
        ({"devices": [0, 2], "gpu-threads": 1}, {"devices": [0, 2]}),
        ({"devices": "all"}, {"devices": "all"}),
        ({"cpu-threads": 4, "devices": [0]}, {"device": "cpu", "workers": 4}),
        ({"cpu-threads": 1, "gpu-threads": 0}, {"device": "cpu", "workers": 0}),
        ({"mode": "CPU", "threads-per-device": 1}, {"device": "cpu", "workers": 0}),
        ({"mode": "gpu"}, {"device": "gpu"}),
    ],
)
def test_where_the_work_goes(config, options, place):
    assert placement_of(read_amun(config(options))) == place


@pytest.mark.parametrize("own", [True, False])
def test_paths_start_at_the_folder_of_the_file(config, tmp_path, own):
    """By the option of the file, or by the flag; absolute paths and URLs stay."""
    (tmp_path / "etc").mkdir()
    options = {
        "scorers": SCORERS,
        "source-vocab": [["../s"], "/abs/s"],
        "target-vocab": "s3://bucket/t",
        "bpe": ["codes"],
        "input-file": "in",
        "softmax-filter": ["lex", 5],
    }
    path = config(options | ({"relative-paths": True} if own else {}), "etc/amun.yml")
    found = read_amun(path, relative=not own)
    etc = f"{tmp_path}/etc"
    assert {name: how["path"] for name, how in found["scorers"].items()} == {
        "F0": f"{etc}/a.npz", "F1": f"{etc}/b.npz"
    }  # fmt: skip
    assert found["source-vocab"] == [[f"{tmp_path}/s"], "/abs/s"] and found["target-vocab"] == "s3://bucket/t"
    assert (found["bpe"], found["input-file"]) == ([f"{etc}/codes"], f"{etc}/in")
    assert found["softmax-filter"] == [f"{etc}/lex", 5]
    assert read_amun(path)["bpe"] == ([f"{etc}/codes"] if own else ["codes"])


def test_weights_of_a_file(config, tmp_path):
    (tmp_path / "w").write_text("F0= 0.25\nF1= -1e-1\n\n")
    options = read_amun(config({"scorers": SCORERS, "load-weights": "w"}))
    assert amun_settings(options)["weights"] == [0.25, -0.1]
    assert amun_settings(options | {"weights": {"F0": 3, "F1": 4}})["weights"] == [0.25, -0.1], "the file is read last"
    assert weight_lines(options) == ["F0= 0.25", "F1= -0.1"]
    assert weight_lines({"model": ["a.npz"]}) == ["F0= 1"]
    for line in ("F0 0.5", "F0= x", "F0="):
        (tmp_path / "w").write_text(f"F0= 1\n{line}\n")
        with pytest.raises(InputError, match="line 2 of 'w'"):
            amun_settings(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("[1", "is not YAML"),
        ("[" * 5000, "is nested too deep"),
        ("- 1", "is of type list but must be a mapping of options of Amun"),
        ("", "is empty but must be a mapping of options of Amun"),
        ("beam-size: 3\nbeam-size: 4", "is not YAML at line 2, column 1: key 'beam-size' is given twice"),
        ("beam: 5", "unknown option 'beam'; did you mean 'beam-size'"),
        ("log-progress: info", "log-progress is not used: a bar"),
        ("normalize: maybe", "normalize is 'maybe' but must be true or false"),
        ("beam-size: 2.5", "beam-size is 2.5 but must be a whole number"),
        ("beam-size: -1", "beam-size is -1"),
        ("max-length-multiple: x", "must be a number"),
        ("target-vocab: [a, b]", "must be one path"),
        ("mode: [CPU]\ninput-file: [[a]]", "must be one path"),
        ("bpe: [1]", "must be a path or several"),
        ("source-vocab: []", "must be a path or several"),
        ("scorers: [a]", "must be a mapping"),
        ("softmax-filter: [lex, x]", "two whole numbers"),
        ({"scorers": SCORERS}, "weights are none; give F0 in both"),
        ({"scorers": {}, "weights": {"F0": 1}}, "scorers are none but weights are F0"),
        ({"scorers": SCORERS, "weights": {"F0": 1, "F2": 1}}, "weights are F0, F2; give F1 in both"),
        ({"scorers": {"F0": "a.npz"}, "weights": {"F0": 1}}, "must be a mapping with a path"),
        ({"scorers": {"F0": {"path": "a", "type": "KenLM"}}, "weights": {"F0": 1}}, "--lm FILE --lm-weight W"),
        ({"scorers": {"F0": {"path": "a", "type": "Ape"}}, "weights": {"F0": 1}}, "the type 'Ape'"),
        ({"scorers": {"F0": {"path": "a", "tabs": 1}}, "weights": {"F0": 1}}, "did you mean 'tab'"),
        ({"scorers": {"F0": {"path": "a", "tab": -1}}, "weights": {"F0": 1}}, "reads tab -1"),
        ({"scorers": {"F0": {"path": "a", "dec-cell": "rnn"}}, "weights": {"F0": 1}}, "dec-cell 'rnn'"),
        ({"scorers": {"F0": {"path": "a"}}, "weights": {"F0": "x"}}, "the weight of F0 is 'x'"),
        ("return-alignment: true\nreturn-soft-alignment: true", "a line has one alignment"),
        ("use-fused-softmax: false", "leave it out"),
        ("mini-batch: 10\nmaxi-batch: 5", "maxi-batch is 5 but must be at least mini-batch, 10"),
        ("gpu-threads: 2", "a larger --mini-batch"),
        ("devices: [a]", "devices is 'a' but must be all"),
        ("devices: [all, 0]", "devices is 'all 0' but must be all"),
        ("mode: TPU", "must be CPU or GPU"),
    ],
)
def test_wrong_options_are_one_line(config, options, message):
    with pytest.raises(InputError) as error:
        found = read_amun(config(options))
        amun_settings(found)
        placement_of(found)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_file_of_a_released_model(shared_data):
    path = shared_data / "nmt" / "wmt-nematus-refs" / "wmt16-ende" / "amun.en-de.yml"
    folder = f"{path.parent}/en-de"
    assert amun_settings(read_amun(str(path))) == {
        "models": [f"{folder}/model.npz"],
        "source_vocab": [f"{folder}/vocab.en.json"],
        "target_vocab": f"{folder}/vocab.de.json",
        "beam_size": 5,
        "debpe": False,
    }
