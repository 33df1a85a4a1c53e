// Calls from Python: objects, the lock, exceptions and arguments. Only module.cpp includes this.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <structmember.h>

#include <atomic>
#include <exception>
#include <new>

#include "model.h"

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

}  // namespace
