// Where KenLM's lmplz splits words: NUL, TAB, LF, CR, space.
__device__ __forceinline__ bool is_delimiter(u8 c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == 0;
}
