// Reads rows, lets the SystemVerilog of unit.sv add each product, and writes results.
#include <cstdio>
#include <vector>
#include "Vunit.h"
#include "Vunit__Dpi.h"
#include "verilated.h"

int main(int argc, char **argv) {
    VerilatedContext context;
    context.commandArgs(argc, argv);
    Vunit unit{&context};
    unit.eval();
    svSetScope(svGetScopeFromName("TOP.unit"));
    int k;
    while (std::scanf("%d", &k) == 1) {
        std::vector<unsigned> codes(2 * k + 1);
        for (unsigned &code : codes) std::scanf("%x", &code);
        int c = static_cast<int>(codes[2 * k]);
        for (int i = 0; i < k; i++)
            c = multiply_add(static_cast<char>(codes[i]), static_cast<char>(codes[k + i]), c);
        std::printf("%08X\n", static_cast<unsigned>(c));
    }
    return 0;
}
