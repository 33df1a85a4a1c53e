// The Python module mgpu_ngram.native._files: reads a part of a file with several threads. It keeps to Python's stable
// ABI. Threads of Python would ask for the interpreter lock after every strip, and the thread that launches kernels
// would wait for them.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

namespace {

constexpr Py_ssize_t STRIP = 2 << 20;  // bytes that a thread reads at once

// Read bytes [at, end) of `to` from `offset` on. Returns where the file ends or the read fails, with errno in *error.
Py_ssize_t read_strip(int file, long long offset, char* to, Py_ssize_t at, Py_ssize_t end, int* error) {
  while (at < end) {
    ssize_t n = pread(file, to + at, end - at, offset + at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      *error = n < 0 ? errno : 0;
      return at;
    }
    at += n;
  }
  return end;
}

// The first place that could not be read, and why: errno, or 0 at the end of the file.
struct Gap {
  Py_ssize_t at;
  int error;
};

Gap read_strips(int file, long long offset, char* to, Py_ssize_t size, int threads) {
  std::atomic<Py_ssize_t> next{0};
  std::vector<Gap> gaps(threads, Gap{size, 0});
  auto read = [&](int thread) {
    for (Py_ssize_t at; (at = next.fetch_add(STRIP)) < size;) {
      Py_ssize_t end = std::min(at + STRIP, size);
      int error = 0;
      Py_ssize_t stop = read_strip(file, offset, to, at, end, &error);
      if (stop == end) continue;
      gaps[thread] = {stop, error};
      next = size;
    }
  };
  std::vector<std::thread> others;
  try {
    for (int i = 1; i < threads; ++i) others.emplace_back(read, i);
  } catch (const std::system_error&) {  // no more threads: those that run read everything
  }
  read(0);
  for (std::thread& other : others) other.join();
  return *std::min_element(gaps.begin(), gaps.end(), [](const Gap& a, const Gap& b) { return a.at < b.at; });
}

PyObject* read_into(PyObject*, PyObject* args) {
  int file, threads;
  long long offset;
  Py_buffer buffer;
  if (!PyArg_ParseTuple(args, "iLw*i", &file, &offset, &buffer, &threads)) return nullptr;
  threads = (int)std::max<Py_ssize_t>(1, std::min<Py_ssize_t>(threads, (buffer.len + STRIP - 1) / STRIP));
  Gap gap;
  Py_BEGIN_ALLOW_THREADS
  gap = read_strips(file, offset, (char*)buffer.buf, buffer.len, threads);
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&buffer);
  if (gap.error) {
    errno = gap.error;
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  return PyLong_FromSsize_t(gap.at);
}

PyMethodDef METHODS[] = {
    {"read_into", read_into, METH_VARARGS,
     "read_into(file, offset, buffer, threads): fill a buffer with the bytes of an open file from `offset` on.\n\n"
     "Returns the number of bytes; it is smaller than the buffer if the file ends before. Raises OSError."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "mgpu_ngram.native._files", nullptr, -1, METHODS,
                      nullptr,               nullptr,                    nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__files() { return PyModule_Create(&MODULE); }
