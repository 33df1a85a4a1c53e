// KenLM's lmplz splits words at NUL, TAB, LF, CR and space.
__device__ __forceinline__ bool is_delimiter(u8 c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == 0;
}

// KenLM's query splits words at the white space of C's isspace.
__device__ __forceinline__ bool is_space(u8 c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
