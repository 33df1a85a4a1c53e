// The Python types State and FullScoreReturn. Only module.cpp includes this.
#pragma once

#include "python_calls.h"

namespace {

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

}  // namespace
