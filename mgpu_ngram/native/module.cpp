// The Python module mgpu_ngram.native._states: the types behind mgpu_ngram.kenlm. It keeps to Python's stable ABI.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <structmember.h>

#include <atomic>
#include <exception>
#include <new>

#include "arpa.h"
#include "kenlm_file.h"
#include "model_file.h"

namespace {

using namespace ngram;

PyObject *state_type, *result_type, *refused;

struct StateObject {
  PyObject_HEAD
  History history;
};

struct ModelObject {
  PyObject_HEAD
  Model* model;
  std::vector<Py_buffer>* buffers;  // memory that the model reads
};

struct ResultObject {
  PyObject_HEAD
  double log_prob;
  int ngram_length;
  char oov;
};

// Python's lock. A thread that passes it on gets it back after up to 5 ms if another thread runs Python code alone. So
// calls pass it on only while several threads score, and for texts that take a millisecond. A thread that finds the lock
// taken sleeps, and to wake it takes longer than to score a sentence. So a thread that wants the lock back first waits for
// as long as another one that scores needs between two sentences.
class Lock {
 public:
  // Whether to pass the lock on while a text is scored; needs the lock.
  static bool pays(Py_ssize_t text_bytes) {
    static thread_local char here;
    if (last_ != &here) calls_ = last_ ? 0 : ALONE, last_ = &here;
    if (calls_ < ALONE) ++calls_;
    return calls_ < ALONE || text_bytes >= LONG_TEXT;
  }

  static PyThreadState* pass_on() {
    PyThreadState* saved = PyEval_SaveThread();
    is_passed_on_.store(true, std::memory_order_release);
    return saved;
  }

  static void take_back(PyThreadState* saved) {
    for (int i = 0; i < WAITS && !is_passed_on_.exchange(false, std::memory_order_acquire); ++i) pause();
    PyEval_RestoreThread(saved);
  }

 private:
  static constexpr Py_ssize_t LONG_TEXT = 1 << 16;  // bytes
  static constexpr int ALONE = 100;  // calls in a row after which a thread is taken to be the only one
  static constexpr int WAITS = 50;  // 1 us

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
  }

  static inline const char* last_ = nullptr;  // the thread that scored last, and its calls in a row
  static inline int calls_ = 0;
  static inline std::atomic<bool> is_passed_on_{true};
};

// Runs `work`, without Python's lock if that pays, and turns C++ exceptions into Python's. Returns whether it ended.
template <class Work>
bool run(bool pays, Work work) {
  std::exception_ptr failure;
  PyThreadState* saved = pays ? Lock::pass_on() : nullptr;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  if (saved) Lock::take_back(saved);
  if (!failure) return true;
  try {
    std::rethrow_exception(failure);
  } catch (const Refused& error) {
    PyErr_SetString(refused, error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return false;
}

PyObject* type_name(PyObject* value) { return PyType_GetName(Py_TYPE(value)); }

bool wrong_type(const char* name, const char* expected, PyObject* value) {
  if (PyObject* found = type_name(value)) {
    PyErr_Format(PyExc_TypeError, "Argument '%s' has incorrect type (expected %s, got %U)", name, expected, found);
    Py_DECREF(found);
  }
  return false;
}

// The bytes of a str or bytes, which live as long as it does.
bool text_of(PyObject* value, const char*& text, Py_ssize_t& size) {
  if (PyUnicode_Check(value)) {
    text = PyUnicode_AsUTF8AndSize(value, &size);
    return text;
  }
  if (PyBytes_Check(value)) {
    text = PyBytes_AsString(value), size = PyBytes_Size(value);
    return true;
  }
  PyErr_Format(PyExc_TypeError, "Cannot convert %S to string", Py_TYPE(value));
  return false;
}

History* history_of(const char* name, PyObject* value) {
  if (PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(state_type)))
    return &reinterpret_cast<StateObject*>(value)->history;
  wrong_type(name, "kenlm.State", value);
  return nullptr;
}

const Model* model_of(PyObject* self) {
  const Model* model = reinterpret_cast<ModelObject*>(self)->model;
  if (!model) PyErr_SetString(PyExc_ValueError, "the model is not loaded; call its __init__ with the path of a file");
  return model;
}

// Sorts positional and keyword arguments into `values`, which holds the defaults. The first `required` must be given.
bool parse(const char* function, const char* const* names, int count, int required, PyObject* const* args,
           Py_ssize_t given, PyObject* keywords, PyObject** values) {
  if (given > count) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %d arguments (%zd given)", function, count, given);
    return false;
  }
  for (Py_ssize_t i = 0; i < given; ++i) values[i] = args[i];
  const Py_ssize_t named = keywords ? PyTuple_Size(keywords) : 0;
  for (Py_ssize_t k = 0; k < named; ++k) {
    PyObject* name = PyTuple_GetItem(keywords, k);
    int i = 0;
    while (i < count && PyUnicode_CompareWithASCIIString(name, names[i])) ++i;
    if (i == count || i < given) {
      PyErr_Format(PyExc_TypeError, "%s() got %s '%U'", function,
                   i == count ? "an unexpected keyword argument" : "multiple values for argument", name);
      return false;
    }
    values[i] = args[given + k];
  }
  for (int i = 0; i < required; ++i)
    if (!values[i]) {
      PyErr_Format(PyExc_TypeError, "%s() lacks its argument '%s'", function, names[i]);
      return false;
    }
  return true;
}

// State

PyObject* state_new(PyTypeObject* type, PyObject*, PyObject*) {
  allocfunc alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = alloc(type, 0);
  if (self) new (&reinterpret_cast<StateObject*>(self)->history) History();
  return self;
}

void state_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<StateObject*>(self)->history.~History();
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyObject* state_compare(PyObject* self, PyObject* other, int operation) {
  if (!PyObject_TypeCheck(other, reinterpret_cast<PyTypeObject*>(state_type))) {
    Py_INCREF(Py_NotImplemented);
    return Py_NotImplemented;
  }
  const int order = reinterpret_cast<StateObject*>(self)->history.compare(reinterpret_cast<StateObject*>(other)->history);
  const bool results[] = {order < 0, order <= 0, order == 0, order != 0, order > 0, order >= 0};  // Py_LT to Py_GE
  return PyBool_FromLong(results[operation]);
}

Py_hash_t state_hash(PyObject* self) {
  const Py_hash_t hash = static_cast<Py_hash_t>(reinterpret_cast<StateObject*>(self)->history.hash());
  return hash == -1 ? -2 : hash;
}

PyObject* state_copy(PyObject* self, PyObject*) {
  PyObject* made = state_new(reinterpret_cast<PyTypeObject*>(state_type), nullptr, nullptr);
  if (!made) return nullptr;
  const bool copied = run(false, [&] {
    reinterpret_cast<StateObject*>(made)->history = reinterpret_cast<StateObject*>(self)->history;
  });
  if (copied) return made;
  Py_DECREF(made);
  return nullptr;
}

PyMethodDef state_methods[] = {
    {"__copy__", state_copy, METH_NOARGS, nullptr},
    {"__deepcopy__", state_copy, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

const char STATE_DOC[] =
    "What a model remembers of the words so far: their longest suffix that can affect later scores.\n\n"
    "A new state is the empty history. Equal states give equal scores to all later words. Shorter states sort first.";

PyType_Slot state_slots[] = {
    {Py_tp_doc, const_cast<char*>(STATE_DOC)},
    {Py_tp_new, reinterpret_cast<void*>(state_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(state_dealloc)},
    {Py_tp_richcompare, reinterpret_cast<void*>(state_compare)},
    {Py_tp_hash, reinterpret_cast<void*>(state_hash)},
    {Py_tp_methods, state_methods},
    {0, nullptr},
};
PyType_Spec state_spec = {"mgpu_ngram.kenlm.State", sizeof(StateObject), 0, Py_TPFLAGS_DEFAULT, state_slots};

// FullScoreReturn

void result_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyObject* result_repr(PyObject* self) {
  const ResultObject* result = reinterpret_cast<ResultObject*>(self);
  PyObject* prob = PyFloat_FromDouble(result->log_prob);
  PyObject* text =
      prob ? PyUnicode_FromFormat("FullScoreReturn(%R, %d, %s)", prob, result->ngram_length, result->oov ? "True" : "False")
           : nullptr;
  Py_XDECREF(prob);
  return text;
}

PyMemberDef result_members[] = {
    {"log_prob", T_DOUBLE, offsetof(ResultObject, log_prob), READONLY, "log10 probability of the word"},
    {"ngram_length", T_INT, offsetof(ResultObject, ngram_length), READONLY, "words of the longest match"},
    {"oov", T_BOOL, offsetof(ResultObject, oov), READONLY, "whether the word is unknown"},
    {nullptr, 0, 0, 0, nullptr},
};

const char RESULT_DOC[] =
    "The score of a word: log10 probability, words of the longest match, and whether the word is unknown.";

PyType_Slot result_slots[] = {
    {Py_tp_doc, const_cast<char*>(RESULT_DOC)},
    {Py_tp_dealloc, reinterpret_cast<void*>(result_dealloc)},
    {Py_tp_repr, reinterpret_cast<void*>(result_repr)},
    {Py_tp_members, result_members},
    {0, nullptr},
};
PyType_Spec result_spec = {"mgpu_ngram.kenlm.FullScoreReturn", sizeof(ResultObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, result_slots};

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
  if (!run(true, [&] { self->model = map_kenlm(data.data, data.size).release(); })) return nullptr;
  Py_RETURN_NONE;
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
    {"_map_kenlm", map_kenlm_file, METH_O, "Load a KenLM binary model from a memory map."},
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
