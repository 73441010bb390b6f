// Questions that are asked of all places of a column of a book, sixteen at a time and without a branch on any of them.

#pragma once

#include <algorithm>
#include <cstdint>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace order_book {

constexpr int64_t BLOCK = 16;

// Bit i of the result is whether number i of a column is `value`. Of `count` numbers, at most a block.
inline uint32_t equal(const int32_t *column, int64_t count, int32_t value) {
#ifdef __AVX512F__
  const __mmask16 there = __mmask16((1u << count) - 1);
  return _mm512_mask_cmpeq_epi32_mask(there, _mm512_maskz_loadu_epi32(there, column), _mm512_set1_epi32(value));
#else
  uint32_t bits = 0;
  for (int64_t i = 0; i < count; ++i) bits |= uint32_t(column[i] == value) << i;
  return bits;
#endif
}

// Bit i of the result is whether number i of a column is more than `value`. Of `count` numbers, at most a block.
inline uint32_t above(const int32_t *column, int64_t count, int32_t value) {
#ifdef __AVX512F__
  const __mmask16 there = __mmask16((1u << count) - 1);
  return _mm512_mask_cmpgt_epi32_mask(there, _mm512_maskz_loadu_epi32(there, column), _mm512_set1_epi32(value));
#else
  uint32_t bits = 0;
  for (int64_t i = 0; i < count; ++i) bits |= uint32_t(column[i] > value) << i;
  return bits;
#endif
}

// The first place from `from` on whose bit is set, `room` without one. `bits(first, count)` are those of a block.
template <typename Bits>
int64_t first_place(int64_t from, int64_t room, Bits bits) {
  for (int64_t first = from; first < room; first += BLOCK)
    if (const uint32_t found = bits(first, std::min(BLOCK, room - first))) return first + __builtin_ctz(found);
  return room;
}

}  // namespace order_book
