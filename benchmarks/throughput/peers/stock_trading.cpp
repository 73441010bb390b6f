// One account after the other by the default rules of tasks/stock_trading/rules.md, for symbols that trade every day.
// SYMBOLS and INDICATORS are numbers of the command line. Money is in ticks.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

constexpr int K = SYMBOLS, FEATURES = SYMBOLS * INDICATORS, WIDTH = 1 + 2 * K + FEATURES;
constexpr int PADDED = (K + 15) / 16 * 16;  // Whole vectors: symbols beyond K have no price, orders or shares.

struct Market {
    const float *close, *relative, *features;  // (paths x days, PADDED), (paths x days, K), (paths x days, K I)
    std::int64_t paths, days, first_day;
};

struct Rules {
    std::int64_t cash, shortest, longest;
    double commission;
    float hmax, scale;
    std::uint64_t seed;
};

struct Account {
    std::int64_t cash, value, start_value, path, day, end_day, episode, ended;
    float holdings[PADDED];
};

// A day of the episode's start, its path and its length by Philox4x32-10.
static void open(Account& account, const Market& market, const Rules& rules, std::uint32_t id) {
    std::uint32_t c[4] = {id, std::uint32_t(account.episode), 0, 0};
    std::uint32_t k[2] = {std::uint32_t(rules.seed), std::uint32_t(rules.seed >> 32)};
    for (int round = 0; round < 10; ++round, k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u) {
        const std::uint64_t p = 0xD2511F53ull * c[0], q = 0xCD9E8D57ull * c[2];
        const std::uint32_t next[4] = {
            std::uint32_t(q >> 32) ^ c[1] ^ k[0], std::uint32_t(q), std::uint32_t(p >> 32) ^ c[3] ^ k[1], std::uint32_t(p)};
        std::memcpy(c, next, sizeof c);
    }
    const std::int64_t length = rules.shortest + ((c[2] * (rules.longest - rules.shortest + 1)) >> 32);
    const std::int64_t starts = std::max<std::int64_t>(market.days - length - market.first_day, 1);
    account.path = (c[1] * market.paths) >> 32;
    account.day = market.first_day + ((c[0] * starts) >> 32);
    account.end_day = std::min(account.day + length, market.days - 1);
    account.cash = account.value = account.start_value = rules.cash;
    account.ended = 0;
    std::memset(account.holdings, 0, sizeof account.holdings);
}

static std::int64_t total(const float* shares, const float* prices) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int k = 0; k < PADDED; ++k) sum += double(shares[k]) * double(prices[k]);
    return std::int64_t(sum);
}

static std::int64_t commission(std::int64_t value, double rate) {
    return std::min(std::int64_t(std::ceil(double(value) * rate)), value);
}

static void observe(const Account& account, const Market& market, float* seen) {
    const std::int64_t row = account.path * market.days + account.day;
    const double start = double(std::max<std::int64_t>(account.start_value, 1));
    const float *close = market.close + row * PADDED, part = float(K / start);
    seen[0] = float(double(account.cash) / start);
    std::memcpy(seen + 1, market.relative + row * K, K * sizeof(float));
    // The features overwrite what is beyond K.
    for (int k = 0; k < PADDED; ++k) seen[1 + K + k] = account.holdings[k] * close[k] * part;
    std::memcpy(seen + 1 + 2 * K, market.features + row * FEATURES, FEATURES * sizeof(float));
}

static float step(Account& account, const float* action, const Market& market, const Rules& rules) {
    const float* close = market.close + (account.path * market.days + account.day) * PADDED;
    alignas(64) float given[PADDED] = {}, sold[PADDED], wanted[PADDED];
    std::memcpy(given, action, K * sizeof(float));
    for (int k = 0; k < PADDED; ++k) {
        const float finite = std::abs(given[k]) <= 3.4028234663852886e+38f ? given[k] : 0.0f;
        const float order = std::trunc(std::min(std::max(finite, -1.0f), 1.0f) * rules.hmax);
        wanted[k] = std::max(order, 0.0f);
        sold[k] = std::min(std::max(-order, 0.0f), account.holdings[k]);
    }
    const std::int64_t proceeds = total(sold, close), cost = total(wanted, close);
    account.cash += proceeds - commission(proceeds, rules.commission);
    const std::int64_t need = cost + commission(cost, rules.commission);
    const float ratio = need <= account.cash ? 1.0f : float((account.cash << 16) / need) * 0x1p-16f;
    for (int k = 0; k < PADDED; ++k) wanted[k] = std::trunc(wanted[k] * ratio);
    const std::int64_t paid = total(wanted, close);
    account.cash -= paid + std::min(commission(paid, rules.commission), account.cash - paid);
    for (int k = 0; k < PADDED; ++k) account.holdings[k] += wanted[k] - sold[k];
    const std::int64_t value = account.cash + total(account.holdings, close + PADDED), gain = value - account.value;
    account.value = value;
    account.ended = (value <= 0 ? 1 : 0) + (++account.day >= account.end_day ? 2 : 0);
    return float(double(gain) / double(std::max<std::int64_t>(account.start_value, 1))) * rules.scale;
}

// A row of whole cache lines, past the caches if it is not read soon.
static void put(const float* seen, float* row, std::int64_t lines, bool streamed) {
#ifdef __AVX512F__
    if (streamed) {
        for (std::int64_t line = 0; line < lines; ++line)
            _mm512_stream_ps(row + 16 * line, _mm512_load_ps(seen + 16 * line));
        return;
    }
#endif
    std::memcpy(row, seen, lines * 64);
}

// T steps of N accounts. Observations are rows of whole lines, their first number `lead` after the start of one.
extern "C" void rollout(
    std::int64_t steps, std::int64_t rows, const Market* market, const Rules* rules, Account* accounts,
    const float* actions, float* observations, std::int64_t lines, std::int64_t lead, bool streamed, float* rewards,
    std::uint8_t* ended) {
    alignas(64) float seen[WIDTH + 32] = {};
    for (std::int64_t t = 0, place = 0; t < steps; ++t)
        for (std::int64_t n = 0; n < rows; ++n, ++place) {
            Account& account = accounts[n];
            if (account.ended) {
                ++account.episode;
                open(account, *market, *rules, std::uint32_t(n));
            }
            observe(account, *market, seen + lead);
            put(seen, observations + place * lines * 16, lines, streamed);
            rewards[place] = step(account, actions + place * K, *market, *rules);
            ended[place] = std::uint8_t(account.ended);
        }
#ifdef __AVX512F__
    _mm_sfence();
#endif
}
