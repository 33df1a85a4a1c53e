// The Python module mgpu_ngram.native._states: the types behind mgpu_ngram.kenlm. It keeps to Python's stable ABI.
#include "python_types.h"  // first, as it includes Python.h

#include "arpa.h"
#include "kenlm_file.h"
#include "model_file.h"

namespace {

using namespace ngram;

// Model: loading

void release(ModelObject* self) {
  delete self->model;
  self->model = nullptr;
  if (self->buffers)
    for (Py_buffer& buffer : *self->buffers) PyBuffer_Release(&buffer);
  delete self->buffers;
  self->buffers = nullptr;
}

void model_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  release(reinterpret_cast<ModelObject*>(self));
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

// The memory of an object, which the model keeps.
bool keep(ModelObject* self, PyObject* object, Array& array) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE)) return false;
  if (!self->buffers) self->buffers = new std::vector<Py_buffer>;
  self->buffers->push_back(buffer);
  array.data = static_cast<const char*>(buffer.buf), array.size = static_cast<uint64_t>(buffer.len);
  return true;
}

PyObject* read_arpa(PyObject* object, PyObject* parts) {
  ModelObject* self = reinterpret_cast<ModelObject*>(object);
  release(self);
  std::unique_ptr<ArpaReader> reader(new ArpaReader);
  PyObject* iterator = PyObject_GetIter(parts);
  if (!iterator) return nullptr;
  bool fine = true;
  while (PyObject* part = fine ? PyIter_Next(iterator) : nullptr) {
    Py_buffer buffer;
    fine = !PyObject_GetBuffer(part, &buffer, PyBUF_SIMPLE);
    if (fine) {
      fine = run(true, [&] { reader->feed(static_cast<const char*>(buffer.buf), static_cast<size_t>(buffer.len)); });
      PyBuffer_Release(&buffer);
    }
    Py_DECREF(part);
  }
  Py_DECREF(iterator);
  if (!fine || PyErr_Occurred()) return nullptr;
  bool lacks_unknown = false;
  if (!run(true, [&] { self->model = reader->finish(lacks_unknown).release(); })) return nullptr;
  return PyBool_FromLong(lacks_unknown);
}

PyObject* map_kenlm_file(PyObject* object, PyObject* file) {
  ModelObject* self = reinterpret_cast<ModelObject*>(object);
  release(self);
  Array data;
  if (!keep(self, file, data)) return nullptr;
  uint64_t repeated = 0;
  const bool done = run(true, [&] {
    self->model = map_kenlm(data.data, data.size).release();
    repeated = self->model->repeated_words();
  });
  return done ? PyLong_FromUnsignedLongLong(repeated) : nullptr;
}

bool numbers_of(PyObject* tuple, std::vector<uint64_t>& numbers) {
  for (Py_ssize_t i = 0, size = PyTuple_Size(tuple); i < size; ++i) {
    numbers.push_back(PyLong_AsUnsignedLongLong(PyTuple_GetItem(tuple, i)));
    if (PyErr_Occurred()) return false;
  }
  return !PyErr_Occurred();
}

// (arrays, starts, fanout, numbers of the edge table): a dict of buffers, tuples of int, int.
PyObject* map_arrays(PyObject* object, PyObject* arguments) {
  ModelObject* self = reinterpret_cast<ModelObject*>(object);
  release(self);
  PyObject *named, *starts_tuple, *edges_tuple, *name, *value;
  unsigned long long fanout;
  if (!PyArg_ParseTuple(arguments, "O!O!KO!", &PyDict_Type, &named, &PyTuple_Type, &starts_tuple, &fanout, &PyTuple_Type,
                        &edges_tuple))
    return nullptr;
  ModelFile::Arrays arrays;
  std::vector<uint64_t> starts, numbers;
  for (Py_ssize_t at = 0; PyDict_Next(named, &at, &name, &value);) {
    Py_ssize_t size;
    const char* key = PyUnicode_AsUTF8AndSize(name, &size);
    if (!key || !keep(self, value, arrays[key])) return nullptr;
  }
  if (!numbers_of(starts_tuple, starts) || !numbers_of(edges_tuple, numbers)) return nullptr;
  Edges edges;
  if (numbers.size() == 6 && arrays.count("edges.slots_E2")) {
    const Array& slots = arrays["edges.slots_E2"];
    edges.slots = slots.data, edges.count = slots.size / 16, edges.buckets = numbers[0];
    uint32_t* const bits[] = {&edges.word_bits, &edges.key_bits, &edges.node_bits, &edges.check_bits, &edges.filter_bits};
    for (int i = 0; i < 5; ++i) *bits[i] = static_cast<uint32_t>(std::min<uint64_t>(numbers[i + 1], 99));
  }
  if (!run(true, [&] { self->model = new ModelFile(arrays, starts, fanout, edges); })) return nullptr;
  Py_RETURN_NONE;
}

// Model: scores

const char* const SENTENCE[] = {"sentence", "bos", "eos"};
const char* const WORD[] = {"in_state", "word", "out_state"};

struct Sentence {
  const char* text;
  Py_ssize_t size;
  int bos = 1, eos = 1;

  bool parse(const char* function, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
    PyObject* values[3] = {};
    if (!::parse(function, SENTENCE, 3, 1, args, given, keywords, values)) return false;
    if (values[1] && (bos = PyObject_IsTrue(values[1])) < 0) return false;
    if (values[2] && (eos = PyObject_IsTrue(values[2])) < 0) return false;
    return text_of(values[0], text, size);
  }

  // Calls each(scores, ids, count) for the words in turn, with </s> if `eos`.
  template <class Each>
  void score(const Model& model, Each each) const {
    Words words(text, static_cast<size_t>(size));
    uint64_t hashes[BLOCK];
    Scored scores[BLOCK];
    uint32_t ids[BLOCK];
    History histories[2];
    unsigned now = 0;
    if (bos) model.begin(histories[0]);
    while (true) {
      size_t count = words.next(hashes, BLOCK);
      const bool last = count < BLOCK;
      model.find_ids(hashes, count, ids);
      if (last && eos) ids[count++] = model.end_id;
      model.score(ids, count, histories, now, scores);
      each(scores, ids, count);
      if (last) return;
    }
  }
};

PyObject* score(PyObject* self, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  Sentence sentence;
  const Model* model = model_of(self);
  if (!model || !sentence.parse("score", args, given, keywords)) return nullptr;
  if (sentence.bos && sentence.eos)  // KenLM reads a whole sentence as a C string
    if (const void* nul = std::memchr(sentence.text, 0, sentence.size))
      sentence.size = static_cast<const char*>(nul) - sentence.text;
  float total = 0;
  const auto add = [&](const Scored* scores, const uint32_t*, size_t count) {
    for (size_t i = 0; i < count; ++i) total += scores[i].prob;
  };
  if (!run(Lock::pays(sentence.size), [&] { sentence.score(*model, add); })) return nullptr;
  return PyFloat_FromDouble(total);
}

PyObject* full_scores(PyObject* self, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  Sentence sentence;
  const Model* model = model_of(self);
  if (!model || !sentence.parse("full_scores", args, given, keywords)) return nullptr;
  std::vector<uint32_t> ids;
  std::vector<Scored> scores;
  const auto append = [&](const Scored* some, const uint32_t* some_ids, size_t count) {
    scores.insert(scores.end(), some, some + count);
    ids.insert(ids.end(), some_ids, some_ids + count);
  };
  if (!run(Lock::pays(sentence.size), [&] { sentence.score(*model, append); })) return nullptr;
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(ids.size()));
  for (size_t i = 0; list && i < ids.size(); ++i) {
    PyObject* tuple = PyTuple_New(3);
    PyObject* prob = tuple ? PyFloat_FromDouble(scores[i].prob) : nullptr;
    PyObject* length = prob ? PyLong_FromUnsignedLong(scores[i].length) : nullptr;
    if (!length) {
      Py_XDECREF(prob);
      Py_XDECREF(tuple);
      Py_DECREF(list);
      return nullptr;
    }
    PyTuple_SetItem(tuple, 0, prob);
    PyTuple_SetItem(tuple, 1, length);
    PyTuple_SetItem(tuple, 2, PyBool_FromLong(ids[i] == 0));
    PyList_SetItem(list, static_cast<Py_ssize_t>(i), tuple);
  }
  return list;
}

// Scores the word that the arguments name; returns false with an exception set if they are wrong.
bool score_word(const char* function, PyObject* self, PyObject* const* args, Py_ssize_t given, PyObject* keywords,
                Scored& scored, uint32_t& id) {
  PyObject* values[3] = {};
  const Model* model = model_of(self);
  if (!model || !parse(function, WORD, 3, 3, args, given, keywords, values)) return false;
  const History* in = history_of("in_state", values[0]);
  if (!in) return false;
  const char* word;
  Py_ssize_t size;
  if (!PyUnicode_Check(values[1]) && values[1] != Py_None) return wrong_type("word", "str", values[1]);
  History* out = history_of("out_state", values[2]);
  if (!out || !text_of(values[1], word, size)) return false;
  if (const void* nul = std::memchr(word, 0, size)) size = static_cast<const char*>(nul) - word;
  return run(false, [&] {
    id = model->id(word, static_cast<size_t>(size));
    scored = model->step(*in, id, *out);
  });
}

PyObject* base_score(PyObject* self, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  Scored scored;
  uint32_t id;
  if (!score_word("BaseScore", self, args, given, keywords, scored, id)) return nullptr;
  return PyFloat_FromDouble(scored.prob);
}

PyObject* base_full_score(PyObject* self, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  Scored scored;
  uint32_t id;
  if (!score_word("BaseFullScore", self, args, given, keywords, scored, id)) return nullptr;
  PyTypeObject* type = reinterpret_cast<PyTypeObject*>(result_type);
  PyObject* made = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0);
  if (!made) return nullptr;
  ResultObject* result = reinterpret_cast<ResultObject*>(made);
  result->log_prob = scored.prob, result->ngram_length = static_cast<int>(scored.length), result->oov = id == 0;
  return made;
}

PyObject* begin_sentence(PyObject* self, PyObject* state) {
  const Model* model = model_of(self);
  History* history = model ? history_of("state", state) : nullptr;
  if (!history) return nullptr;
  model->begin(*history);
  Py_RETURN_NONE;
}

PyObject* null_context(PyObject*, PyObject* state) {
  History* history = history_of("state", state);
  if (!history) return nullptr;
  Model::clear(*history);
  Py_RETURN_NONE;
}

int contains(PyObject* self, PyObject* word) {
  const Model* model = model_of(self);
  const char* text;
  Py_ssize_t size;
  if (!model || !text_of(word, text, size)) return -1;
  if (const void* nul = std::memchr(text, 0, size)) size = static_cast<const char*>(nul) - text;
  return model->id(text, static_cast<size_t>(size)) != 0;
}

PyObject* order_of(PyObject* self, void*) {
  const Model* model = model_of(self);
  return model ? PyLong_FromUnsignedLong(model->order) : nullptr;
}

template <class Function>
PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

constexpr int FAST = METH_FASTCALL | METH_KEYWORDS;

PyMethodDef model_methods[] = {
    {"_read_arpa", read_arpa, METH_O, "Load an ARPA file from its parts; return whether it lacks <unk>."},
    {"_map_kenlm", map_kenlm_file, METH_O, "Load a KenLM binary model from a memory map; return the number of words that it lists again."},
    {"_map_arrays", map_arrays, METH_VARARGS, "Load the arrays of a model file."},
    {"_full_scores", as_method(full_scores), FAST, "Return the items of full_scores."},
    {"score", as_method(score), FAST,
     "score($self, sentence, bos=True, eos=True)\n--\n\n"
     "Return the log10 probability of a sentence, given without <s>.\n\n"
     "bos  whether <s> precedes the sentence\neos  whether </s> follows it"},
    {"BaseScore", as_method(base_score), FAST,
     "BaseScore($self, in_state, word, out_state)\n--\n\n"
     "Return the log10 probability of a word after in_state; sets out_state to the state after the word."},
    {"BaseFullScore", as_method(base_full_score), FAST,
     "BaseFullScore($self, in_state, word, out_state)\n--\n\n"
     "As BaseScore, but also returns the words of the longest match and whether the word is unknown."},
    {"BeginSentenceWrite", begin_sentence, METH_O,
     "BeginSentenceWrite($self, state)\n--\n\nSet a state to the beginning of a sentence."},
    {"NullContextWrite", null_context, METH_O,
     "NullContextWrite($self, state)\n--\n\nSet a state to the empty history."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef model_fields[] = {
    {"order", order_of, nullptr, "words of the longest n-grams", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot model_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(model_dealloc)},
    {Py_tp_methods, model_methods},
    {Py_tp_getset, model_fields},
    {Py_sq_contains, reinterpret_cast<void*>(contains)},
    {0, nullptr},
};
PyType_Spec model_spec = {"mgpu_ngram.native._states.Model", sizeof(ModelObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, model_slots};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_states", "The types behind mgpu_ngram.kenlm.", -1, nullptr,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__states() {
  PyObject* module = PyModule_Create(&definition);
  if (!module) return nullptr;
  state_type = PyType_FromSpec(&state_spec);
  result_type = PyType_FromSpec(&result_spec);
  refused = PyErr_NewException("mgpu_ngram.native._states.Refused", nullptr, nullptr);
  PyObject* model_type = PyType_FromSpec(&model_spec);
  if (!state_type || !result_type || !refused || !model_type || PyModule_AddObjectRef(module, "State", state_type) ||
      PyModule_AddObjectRef(module, "FullScoreReturn", result_type) || PyModule_AddObjectRef(module, "Refused", refused) ||
      PyModule_AddObjectRef(module, "Model", model_type))
    return nullptr;
  Py_DECREF(model_type);
  return module;
}
