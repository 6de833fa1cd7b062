"""Division and square root of f32 in GLSL, correctly rounded.

Vulkan lets a device's own be 2.5 and 4.5 units off (Vulkan specification, "Precision
and Operation of SPIR-V Instructions"). Here they only give a first guess at a quotient
or root with a bit or two more than f32 has. What is left of the dividend is then
exact in 32 bits, however large the numbers, because it is small: from it the guess is
put right, and rounded once. Subnormals are handled too, whatever the device makes of
them elsewhere.
"""

from __future__ import annotations

__all__ = ["DIVIDE", "SQRT"]

DIVIDE = """\
float divide_f32(float a, float b) {
    const uint sign = (floatBitsToUint(a) ^ floatBitsToUint(b)) & 0x80000000u;
    uint m = floatBitsToUint(a) & 0x7FFFFFFFu;
    uint n = floatBitsToUint(b) & 0x7FFFFFFFu;
    const uint infinity = 0x7F800000u;
    if (max(m, n) > infinity || (m == n && (m == 0u || m == infinity))) {
        return uintBitsToFloat(0x7FC00000u);
    }
    if (m == infinity || n == 0u) return uintBitsToFloat(sign | infinity);
    if (m == 0u || n == infinity) return uintBitsToFloat(sign);
    // Both as integers of 24 bits and an exponent.
    int exponent = int(m >> 23) - int(n >> 23);
    const int up_m = 23 - findMSB(m);
    const int up_n = 23 - findMSB(n);
    if (m < 0x00800000u) { m <<= up_m; exponent += 1 - up_m; }
    else { m = (m & 0x007FFFFFu) | 0x00800000u; }
    if (n < 0x00800000u) { n <<= up_n; exponent -= 1 - up_n; }
    else { n = (n & 0x007FFFFFu) | 0x00800000u; }
    if (m < n) { m <<= 1; exponent -= 1; }
    // 1 <= m / n < 2: a guess at floor(2^25 m / n), then the exact rest.
    uint quotient = uint((float(m) / float(n)) * 33554432.0);
    int rest = int((m << 25) - quotient * n);
    const int change = int(floor(float(rest) / float(n)));
    quotient += uint(change);
    rest -= change * int(n);
    if (rest < 0) { quotient -= 1u; rest += int(n); }
    else if (rest >= int(n)) { quotient += 1u; rest -= int(n); }
    // Two bits more than f32 has; the last also stands for all that is cut off.
    quotient |= uint(rest != 0);
    exponent += 127;
    if (exponent >= 255) return uintBitsToFloat(sign | infinity);
    if (exponent < 1) {
        const int down = min(1 - exponent, 27);
        const uint cut = quotient & ((1u << down) - 1u);
        quotient = (quotient >> down) | uint(cut != 0u);
        exponent = 1;
    }
    const uint even = (quotient >> 2) & 1u;
    const uint rounded = (quotient + 1u + even) >> 2;
    const uint hidden = uint(exponent - 1) << 23;
    return uintBitsToFloat(sign | (hidden + rounded));
}"""

SQRT = """\
float sqrt_f32(float a) {
    const uint bits = floatBitsToUint(a);
    uint m = bits & 0x7FFFFFFFu;
    if (m == 0u || bits == 0x7F800000u) return a;
    if (bits > 0x7F800000u) return uintBitsToFloat(0x7FC00000u);
    // An integer of 24 or 25 bits and an even exponent.
    int exponent = int(m >> 23) - 127;
    const int up = 23 - findMSB(m);
    if (m < 0x00800000u) { m <<= up; exponent += 1 - up; }
    else { m = (m & 0x007FFFFFu) | 0x00800000u; }
    if ((exponent & 1) != 0) { m <<= 1; exponent -= 1; }
    // A guess at floor(sqrt(2^25 m)), then the exact rest.
    uint root = uint(sqrt(float(m) * 33554432.0));
    int rest = int((m << 25) - root * root);
    root += uint(int(floor(float(rest) / float(2u * root))));
    rest = int((m << 25) - root * root);
    if (rest < 0) root -= 1u;
    else if (rest > int(2u * root)) root += 1u;
    // One bit more than f32 has, and no root is half way between two.
    return uintBitsToFloat((uint((exponent >> 1) + 126) << 23) + ((root + 1u) >> 1));
}"""
