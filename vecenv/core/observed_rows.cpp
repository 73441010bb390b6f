// Rows of observations, put together from parts and stored past the caches: a plain store reads a line before it writes it.

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr std::int64_t LINE = 16;  // Numbers of float32.
constexpr std::int64_t AHEAD = 2;  // Rows that are fetched before they are needed.

struct Part {
    const float* from;  // First row.
    std::int64_t stride, width, by_reference;
};

void stream(float* to, const float* from, std::int64_t lines) {
    for (std::int64_t place = 0; place < lines * LINE; place += LINE) {
#if defined(__AVX512F__)
        _mm512_stream_ps(to + place, _mm512_loadu_ps(from + place));
#elif defined(__AVX2__)
        _mm256_stream_ps(to + place, _mm256_loadu_ps(from + place));
        _mm256_stream_ps(to + place + 8, _mm256_loadu_ps(from + place + 8));
#else
        std::memcpy(to + place, from + place, LINE * sizeof(float));
#endif
    }
}

}  // namespace

// Each row takes `lines` whole cache lines from `observed` on, its first number is `lead` after the start of one.
extern "C" void vecenv_put_rows(
    std::int64_t rows, std::int64_t lines, std::int64_t lead, std::int64_t count, const Part* parts,
    const std::int64_t* reference, float* observed) {
    alignas(64) float row[MOST_LINES * LINE] = {};
    for (std::int64_t n = 0; n < rows; ++n, observed += lines * LINE) {
        // References are in no order.
        const std::int64_t ahead = reference[n + AHEAD < rows ? n + AHEAD : n];
        for (const Part* part = parts; part < parts + count; ++part)
            for (std::int64_t far = 0; part->by_reference && far < part->width; far += LINE)
                __builtin_prefetch(part->from + ahead * part->stride + far);
        std::int64_t place = lead, done = 0;
        for (const Part* part = parts; part < parts + count; place += part++->width) {
            const float* from = part->from + (part->by_reference ? reference[n] : n) * part->stride;
            const std::int64_t whole = place % LINE == 0 ? part->width / LINE : 0;
            if (whole) {
                stream(observed + done, row + done, (place - done) / LINE);
                stream(observed + place, from, whole);
                done = place + whole * LINE;
            }
            std::memcpy(row + place + whole * LINE, from + whole * LINE, (part->width - whole * LINE) * sizeof(float));
        }
        stream(observed + done, row + done, lines - done / LINE);
    }
#if defined(__AVX512F__) || defined(__AVX2__)
    // Such stores are in no order with later ones, by which another thread may learn that it can read.
    _mm_sfence();
#endif
}

extern "C" std::int32_t vecenv_same_bytes(const void* one, const void* other, std::int64_t bytes) {
    return std::memcmp(one, other, bytes) == 0;
}
