"""The id of a lattice."""

import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nbest.lattices import parse_lattice

ARCS = ["0 1 a 1,2", "1"]


@pytest.mark.parametrize(("lines", "default_id"), [(["7", *ARCS], "3"), (["7", *ARCS], None), (ARCS, "7")])
def test_the_id_of_a_lattice(lines, default_id):
    assert parse_lattice(lines, "kaldi", default_id).id == "7"


def test_a_lattice_whose_number_is_unknown():
    message = "has no id, and an earlier file that could not be read leaves its number unknown; give it an id, or mend"
    with pytest.raises(InputError, match=message):
        parse_lattice(ARCS, "kaldi", None)
