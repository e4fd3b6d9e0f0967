/* CRC-32 of IEEE 802.3 (reflected polynomial 0xedb88320), eight bytes at a time. */
#include "frame/internal.h"

enum { SLICES = 8 };

static uint32_t slice[SLICES][256]; /* [k][b]: what byte b does, k bytes before the end */

__attribute__((constructor)) static void make_slices(void)
{
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t crc = b;

		for (int i = 0; i < 8; i++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
		slice[0][b] = crc;
	}
	for (int k = 1; k < SLICES; k++)
		for (int b = 0; b < 256; b++)
			slice[k][b] = slice[k - 1][b] >> 8 ^ slice[0][slice[k - 1][b] & 255];
}

static uint32_t le32(const uint8_t *b)
{
	return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

uint32_t crc32_add(uint32_t crc, const void *p, size_t n)
{
	const uint8_t *b = p;

	crc = ~crc;
	for (; n >= SLICES; n -= SLICES, b += SLICES) {
		uint32_t low = crc ^ le32(b), high = le32(b + 4);

		crc = slice[7][low & 255] ^ slice[6][low >> 8 & 255];
		crc ^= slice[5][low >> 16 & 255] ^ slice[4][low >> 24];
		crc ^= slice[3][high & 255] ^ slice[2][high >> 8 & 255];
		crc ^= slice[1][high >> 16 & 255] ^ slice[0][high >> 24];
	}
	for (; n; n--, b++)
		crc = crc >> 8 ^ slice[0][(crc ^ *b) & 255];
	return ~crc;
}
