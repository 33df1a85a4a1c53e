// Words that grow letter by letter, in a lexicon and a trie of hot words, and their scores: see ctc/cpu_search.py.
// Include after state_step.cuh.
#define ROOT (-1)
#define OFF (-2)
#define USUAL_LENGTH 6

struct Part {
  u64 hash;
  double score;
  int node, hot, length;
};
struct Trie {
  Edges edges;
  const ulonglong2* words_V;
};
struct Search {
  const u8* kind_V;
  const int *first_V, *symbols_S;
  const ulonglong2* hash_V;
  Trie lexicon, hot_words;
  const int* word_G;
  const double* score_G;
  const u8* whole_G;
  States states;
  i64 end;
  double weight, alpha, beta, unknown, unit;
  bool has_model;
};

__device__ __forceinline__ u64 with_word(u64 text, u64 part) { return mix64(text ^ mix64(part + 1)); }
__device__ __forceinline__ u64 key_of(u64 text, u64 part, bool closed, int last) {
  const u64 key = mix64(with_word(text, part + (closed ? 0x632BE59BD9B4E019ULL : 0)) + (u64)(last + 2));
  return key ? key : 1;
}

__device__ int follow(const Trie& trie, int node, int symbol, bool& marked) {
  marked = false;
  if (node == OFF) return OFF;
  ulonglong2 found = trie.words_V[symbol];
  if (node != ROOT) {
    found = find_edge(trie.edges, node, symbol);
    if (!found.x) return OFF;
    symbol = (int)(found.x & ((1ULL << trie.edges.node_bits) - 1));
  }
  marked = edge_values(found).x != 0;
  return symbol;
}

__device__ Part extended(const Search& search, Part part, int token) {
  const int end = search.first_V[token + 1];
  bool known = false, is_hot;
  for (int s = search.first_V[token]; s < end; ++s) {
    const int symbol = search.symbols_S[s];
    part.node = follow(search.lexicon, part.node, symbol, known);
    part.hot = follow(search.hot_words, part.hot, symbol, is_hot);
    if (!is_hot) part.hot = OFF;
    ++part.length;
  }
  const ulonglong2 hash = search.hash_V[token];
  part.hash = part.hash * hash.y + hash.x;
  part.score = 0;
  if (part.hot >= 0) {
    part.score = search.score_G[part.hot];
  } else if (part.length && search.has_model && !known) {
    part.score = search.unknown;
    if (part.length > USUAL_LENGTH) part.score = __ddiv_rn(__dmul_rn(part.score, part.length), USUAL_LENGTH);
  }
  return part;
}

// Return the score of a word after a state, and set the state after it; at the end of a text, with that of </s>.
__device__ double word_score(const Search& search, int state, int node, bool is_last, int& next) {
  const int code = node >= 0 ? search.word_G[node] : -1;
  double score = to_double(step(search.states, state, code >= 0 ? code : ~code, next));
  if (code < 0) score = __dadd_rn(score, search.unknown);
  if (is_last && search.end >= 0) {
    int after;
    score = __dadd_rn(score, to_double(step(search.states, next, search.end, after)));
  }
  return __dadd_rn(__dmul_rn(__dmul_rn(search.alpha, score), search.unit), search.beta);
}

__device__ double total_of(const Search& search, double logit, double raw, int hot_words, double part_score) {
  const double hot = __dmul_rn(search.weight, hot_words);
  if (search.has_model) return __dadd_rn(logit, __dadd_rn(__dadd_rn(raw, hot), part_score));
  return __dadd_rn(__dadd_rn(logit, hot), part_score);
}
