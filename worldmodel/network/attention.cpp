// Attention of a day to the days that a ring buffer keeps, for rows with keys and values of their own in memory.
// HEADS, WIDTH of a head and WINDOW are the network's, the latter two multiples of four.

#include <cstdint>

#include <immintrin.h>

namespace {

constexpr int LINE = 16;   // Numbers of a cache line.
constexpr int AHEAD = 2;   // Rows that are fetched before they are needed,
constexpr int AT_ONCE = 2;  // so many lines with each step of the passes that compute most.
constexpr int SIZE = WIDTH * WINDOW;

// N vectors of eight columns, or one of four, of HEADS x DEPTH times DEPTH x COLUMNS. Sums are made in order.
template <int DEPTH, int COLUMNS, int N>
inline void multiply(const float* left, const float* right, const float* ahead, float* to) {
    __m256 sum[HEADS][N] = {};
    for (int d = 0; d < DEPTH; ++d, right += COLUMNS) {
        for (int line = 0; N > 1 && line < AT_ONCE; ++line, ahead += LINE) __builtin_prefetch(ahead, 0, 2);
        __m256 part[N];
        for (int n = 0; n < N; ++n) part[n] = _mm256_loadu_ps(right + 8 * n);
        for (int h = 0; h < HEADS; ++h)
            for (int n = 0; n < N; ++n)
                sum[h][n] = _mm256_fmadd_ps(_mm256_broadcast_ss(left + h * DEPTH + d), part[n], sum[h][n]);
    }
    for (int h = 0; h < HEADS; ++h)
        for (int n = 0; n < N; ++n) _mm256_storeu_ps(to + h * COLUMNS + 8 * n, sum[h][n]);
}

template <int DEPTH, int COLUMNS>
inline void multiply_four(const float* left, const float* right, float* to) {
    __m128 sum[HEADS] = {};
    for (int d = 0; d < DEPTH; ++d, right += COLUMNS)
        for (int h = 0; h < HEADS; ++h)
            sum[h] = _mm_fmadd_ps(_mm_broadcast_ss(left + h * DEPTH + d), _mm_loadu_ps(right), sum[h]);
    for (int h = 0; h < HEADS; ++h) _mm_storeu_ps(to + h * COLUMNS, sum[h]);
}

template <int DEPTH, int COLUMNS>
inline void multiply(const float* left, const float* right, float* to) {
    // What lies beyond the last row is fetched, but not read.
    const float* ahead = right + AHEAD * SIZE;
    int c = 0;
    for (; c + 24 <= COLUMNS; c += 24, ahead += AT_ONCE * LINE * DEPTH)
        multiply<DEPTH, COLUMNS, 3>(left, right + c, ahead, to + c);
    for (; c + 8 <= COLUMNS; c += 8) multiply<DEPTH, COLUMNS, 1>(left, right + c, ahead, to + c);
    for (; c < COLUMNS; c += 4) multiply_four<DEPTH, COLUMNS>(left, right + c, to + c);
}

}  // namespace

// Writes the keys of the rows at a place, and multiplies the queries by all keys. A row has made queries, key and value.
extern "C" void vecenv_score_days(std::int64_t rows, std::int64_t place, const float* made, float* keys, float* score) {
    for (; rows > 0; --rows, made += (HEADS + 2) * WIDTH, keys += SIZE, score += HEADS * WINDOW) {
        for (int n = 0; n < WIDTH; ++n) keys[n * WINDOW + place] = made[HEADS * WIDTH + n];
        multiply<WIDTH, WINDOW>(made, keys, score);
    }
}

// Writes the values of the rows at a place, and mixes all values by the shares of the days.
extern "C" void vecenv_mix_days(
    std::int64_t rows, std::int64_t place, const float* made, float* values, const float* share, float* mixed) {
    for (; rows > 0; --rows, made += (HEADS + 2) * WIDTH, values += SIZE, share += HEADS * WINDOW, mixed += HEADS * WIDTH) {
        for (int n = 0; n < WIDTH; ++n) values[place * WIDTH + n] = made[(HEADS + 1) * WIDTH + n];
        multiply<WINDOW, WIDTH>(share, values, mixed);
    }
}
