/* A program under test: a row a line on standard input, k, a[k], b[k] and c; a result a line on standard output.
   cc -O2 unit.c -o unit && fplab conform --unit H100 --format fp16 -- ./unit */
#include <stdio.h>
#include "unit.h"

int main(void) {
    static uint32_t a[4096], b[4096], c;
    int k;
    while (scanf("%d", &k) == 1 && k <= 4096) {
        for (int i = 0; i < k; i++) scanf("%x", &a[i]);
        for (int i = 0; i < k; i++) scanf("%x", &b[i]);
        scanf("%x", &c);
        printf("%08X\n", chain(k, a, b, c));
    }
    return 0;
}
