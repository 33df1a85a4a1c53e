// Where KenLM's lmplz splits words: NUL, TAB, LF, CR, space.
__device__ __forceinline__ bool is_delimiter(u8 c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == 0;
}

// Where KenLM's query splits them: the white space of C's isspace.
__device__ __forceinline__ bool is_space(u8 c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
