// Tries of spellings: node m's children are first_child_M[m] to first_child_M[m + 1] - 1, by rising byte.
typedef int i32;

// Return the node that a byte leads to from node m, one of M; M for none.
__device__ __forceinline__ i64 spelling_child(const u8* byte_M, const i32* first_child_M, i64 M, i64 m, u8 byte) {
  i64 low = first_child_M[m], high = first_child_M[m + 1];
  const i64 stop = high;
  while (low < high) {
    const i64 middle = (low + high) >> 1;
    if (byte_M[middle] < byte) low = middle + 1;
    else high = middle;
  }
  return low < stop && byte_M[low] == byte ? low : M;
}
