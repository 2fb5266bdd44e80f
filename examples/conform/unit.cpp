// A library under test: a function of C that computes one row of codes; scales are null where the unit has none.
// c++ -O2 -shared -fPIC unit.cpp -o unit.so && fplab conform --unit H100 --format fp16 --library ./unit.so
#include <vector>
#include "unit.h"

extern "C" uint64_t unit(uint32_t k, const uint64_t *a, const uint64_t *b, const uint64_t *scale_a,
                         const uint64_t *scale_b, uint64_t c) {
    std::vector<uint32_t> x(a, a + k), y(b, b + k);
    return scale_a || scale_b ? 0 : chain(static_cast<int>(k), x.data(), y.data(), static_cast<uint32_t>(c));
}
