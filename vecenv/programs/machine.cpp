// Programs on a register machine: each instruction does 256 lanes, so that the registers of a program stay in the first
// cache. Numbers are those of `operations`; it is built without contraction of products and sums.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int LANES = 256;

// In the order of `operations.ELEMENTWISE`.
enum Opcode : int32_t { ADD, SUB, MUL, DIV, NEG, ABS, SIGN, MIN, MAX, LT, LE, EQ, IF };

struct Instruction {
  int32_t opcode, target, a, b, c;
};

struct Header {
  int32_t registers, constants, instructions, outputs;
};

template <typename F>
inline void each(int count, F number) {
#pragma omp simd
  for (int i = 0; i < count; ++i) number(i);
}

inline void execute(int32_t opcode, float *r, const float *a, const float *b, const float *c, int count) {
  switch (opcode) {
    case ADD: return each(count, [=](int i) { r[i] = a[i] + b[i]; });
    case SUB: return each(count, [=](int i) { r[i] = a[i] - b[i]; });
    case MUL: return each(count, [=](int i) { r[i] = a[i] * b[i]; });
    case DIV:
      return each(count, [=](int i) {
        const float quotient = a[i] / b[i];
        r[i] = b[i] == 0.0f ? 0.0f : quotient;
      });
    case NEG: return each(count, [=](int i) { r[i] = -a[i]; });
    case ABS: return each(count, [=](int i) { r[i] = __builtin_fabsf(a[i]); });
    case SIGN:
      return each(count, [=](int i) {
        const float sign = (a[i] > 0.0f ? 1.0f : 0.0f) - (a[i] < 0.0f ? 1.0f : 0.0f);
        r[i] = a[i] == a[i] ? sign : a[i];
      });
    case MIN:
      return each(count, [=](int i) {
        const float least = a[i] < b[i] ? a[i] : b[i];
        r[i] = (a[i] == a[i] ? least : a[i]) + 0.0f;
      });
    case MAX:
      return each(count, [=](int i) {
        const float most = a[i] > b[i] ? a[i] : b[i];
        r[i] = (a[i] == a[i] ? most : a[i]) + 0.0f;
      });
    case LT: return each(count, [=](int i) { r[i] = a[i] < b[i] ? 1.0f : 0.0f; });
    case LE: return each(count, [=](int i) { r[i] = a[i] <= b[i] ? 1.0f : 0.0f; });
    case EQ: return each(count, [=](int i) { r[i] = a[i] == b[i] ? 1.0f : 0.0f; });
    case IF: return each(count, [=](int i) { r[i] = a[i] != 0.0f ? b[i] : c[i]; });
  }
}

}  // namespace

// Run the programs from `first` to `last`. The code of a program is a header, constants, which fill its first registers,
// instructions and the operands that are its outputs; an operand is a register, or ~ of a given row. Rows are `lanes`
// numbers each; the outputs of a program are rows of `outputs` from `output_rows` on.
extern "C" void vecenv_programs_run(int64_t first, int64_t last, const int32_t *code, const int64_t *starts,
                                    const int64_t *output_rows, const float *rows, int64_t lanes, float *outputs) {
  std::vector<float> memory;
  for (int64_t program = first; program < last; ++program) {
    const int32_t *next = code + starts[program];
    Header header;
    std::memcpy(&header, next, sizeof header);
    const int32_t *constants = next + sizeof header / sizeof *next;
    const auto *instructions = reinterpret_cast<const Instruction *>(constants + header.constants);
    const auto *results = reinterpret_cast<const int32_t *>(instructions + header.instructions);
    if (memory.size() < size_t(header.registers) * LANES) memory.resize(size_t(header.registers) * LANES);
    float *registers = memory.data();
    for (int32_t i = 0; i < header.constants; ++i) {
      float value;
      std::memcpy(&value, constants + i, sizeof value);
      std::fill_n(registers + i * LANES, LANES, value);
    }
    for (int64_t lane = 0; lane < lanes; lane += LANES) {
      const int count = int(std::min<int64_t>(LANES, lanes - lane));
      const auto at = [=](int32_t place) -> const float * {
        return place >= 0 ? registers + place * LANES : rows + ~int64_t(place) * lanes + lane;
      };
      for (int32_t i = 0; i < header.instructions; ++i) {
        const Instruction &own = instructions[i];
        execute(own.opcode, registers + own.target * LANES, at(own.a), at(own.b), at(own.c), count);
      }
      for (int32_t i = 0; i < header.outputs; ++i)
        std::memcpy(outputs + (output_rows[program] + i) * lanes + lane, at(results[i]), count * sizeof(float));
    }
  }
}
