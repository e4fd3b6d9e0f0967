/* The form in which the rows of a KV block are stored. */
#include "store/block.h"

#include <math.h>

#include "base/mem.h"

#define E4M3_MOST 448.0f
#define AMAX_LEAST 1e-4f

/* Several elements at a time: adding 1 to an exponent of all ones, and to no other, carries into the sign's place. */
bool block_finite(const struct block_layout *l, const void *memory)
{
	size_t bytes = (size_t)(l->layers * l->tokens * (l->latent + l->rope)) * dtype_size(l->type);
	uint64_t mask = l->type == DT_BF16 ? 0x7f807f807f807f80 : 0x7f8000007f800000;
	uint64_t one = l->type == DT_BF16 ? 0x0080008000800080 : 0x0080000000800000, bad = 0, word;
	const unsigned char *p = memory;

	for (; bytes >= sizeof(word); bytes -= sizeof(word), p += sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		bad |= (word & mask) + one;
	}
	word = 0;
	memcpy(&word, p, bytes);
	bad |= (word & mask) + one;
	return !(bad & (mask + one));
}

static float get(enum dtype type, const unsigned char *p)
{
	uint16_t half;
	float f;

	if (type == DT_BF16) {
		memcpy(&half, p, sizeof(half));
		return bf16_to_f32(half);
	}
	memcpy(&f, p, sizeof(f));
	return f;
}

static void set(enum dtype type, unsigned char *p, float f)
{
	uint16_t half = f32_to_bf16(f);

	if (type == DT_BF16)
		memcpy(p, &half, sizeof(half));
	else
		memcpy(p, &f, sizeof(f));
}

/* Up to 128 elements of a latent: their codes, as the kernels quantise activations (kernels.h, ACT_F8); the scale. */
static float pack_group(enum dtype type, const unsigned char *x, size_t n, uint8_t *codes)
{
	size_t element = dtype_size(type);
	float amax = AMAX_LEAST, scale;

	for (size_t i = 0; i < n; i++)
		amax = fmaxf(amax, fabsf(get(type, x + i * element)));
	scale = amax / E4M3_MOST;
	for (size_t i = 0; i < n; i++)
		codes[i] = f32_to_e4m3(get(type, x + i * element) / scale);
	return scale;
}

bool block_pack(const struct block_layout *l, const void *memory, void *stored)
{
	size_t rows = (size_t)(l->layers * l->tokens), element = dtype_size(l->type), groups = block_groups(l);
	size_t latent = (size_t)l->latent, rope = (size_t)l->rope, scale_at, rope_at;
	const unsigned char *x = memory; /* [rows, latent + rope] */
	uint8_t *out = stored;

	if (!block_finite(l, memory))
		return false;
	block_parts(l, &scale_at, &rope_at);
	memset(out + rows * latent, 0, scale_at - rows * latent);
	memset(out + scale_at, 0, rope_at - scale_at);
	for (size_t r = 0; r < rows; r++, x += (latent + rope) * element) {
		for (size_t g = 0; g < groups; g++) {
			size_t n = latent - g * FP8_BLOCK < FP8_BLOCK ? latent - g * FP8_BLOCK : FP8_BLOCK;
			float scale = pack_group(l->type, x + g * FP8_BLOCK * element, n,
				out + r * latent + g * FP8_BLOCK);

			memcpy(out + scale_at + (r * groups + g) * sizeof(scale), &scale, sizeof(scale));
		}
		memcpy(out + rope_at + r * rope * element, x + latent * element, rope * element);
	}
	return true;
}

void block_unpack(const struct block_layout *l, const void *stored, void *memory)
{
	size_t rows = (size_t)(l->layers * l->tokens), element = dtype_size(l->type), groups = block_groups(l);
	size_t latent = (size_t)l->latent, rope = (size_t)l->rope, scale_at, rope_at;
	const uint8_t *in = stored;
	unsigned char *x = memory; /* [rows, latent + rope] */

	block_parts(l, &scale_at, &rope_at);
	for (size_t r = 0; r < rows; r++, x += (latent + rope) * element) {
		for (size_t i = 0; i < latent; i++) {
			float scale;

			memcpy(&scale, in + scale_at + (r * groups + i / FP8_BLOCK) * sizeof(scale), sizeof(scale));
			set(l->type, x + i * element, e4m3_to_f32(in[r * latent + i]) * scale);
		}
		memcpy(x + latent * element, in + rope_at + r * rope * element, rope * element);
	}
}
