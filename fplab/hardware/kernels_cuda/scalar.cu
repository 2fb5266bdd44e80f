// One instruction on every element: y[i] = OP(x[i], ...), with up to three operands, each an array of n elements.

extern "C" __global__ void elements(const X *a, const X *b, const X *c, Y *y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Y result;
    INSTRUCTION(result, a[i], b[i], c[i]);
    y[i] = result;
}
