/* The form in which the rows of a KV block are stored. */
#include "store/block.h"

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

/* ---- groups of up to 128 elements: loops of a fixed length, which compilers turn into vectors ---- */

static float code_value[256];

__attribute__((constructor)) static void make_values(void)
{
	for (int code = 0; code < 256; code++)
		code_value[code] = e4m3_to_f32((uint8_t)code);
}

/* x [n] of BF16 or F32, at any alignment; zeros behind it. */
static void load(enum dtype type, const unsigned char *x, size_t n, float f[FP8_BLOCK])
{
	uint16_t half[FP8_BLOCK] = { 0 };

	if (type == DT_BF16) {
		memcpy(half, x, n * sizeof(*half));
		for (int i = 0; i < FP8_BLOCK; i++)
			f[i] = bf16_to_f32(half[i]);
	} else {
		memset(f, 0, FP8_BLOCK * sizeof(*f));
		memcpy(f, x, n * sizeof(*f));
	}
}

/* Codes [n] as the kernels quantise activations (kernels.h, ACT_F8); the scale. */
static float pack_group(enum dtype type, const unsigned char *x, size_t n, uint8_t *codes)
{
	uint32_t most = 0, bits[FP8_BLOCK];
	float f[FP8_BLOCK], amax, scale;
	uint8_t all[FP8_BLOCK];

	load(type, x, n, f);
	memcpy(bits, f, sizeof(bits));
	for (int i = 0; i < FP8_BLOCK; i++) { /* of finite values, bits without the sign are in order */
		uint32_t u = bits[i] & 0x7fffffff;

		most = u > most ? u : most;
	}
	memcpy(&amax, &most, sizeof(amax));
	amax = amax > AMAX_LEAST ? amax : AMAX_LEAST;
	scale = amax / E4M3_MOST;
	for (int i = 0; i < FP8_BLOCK; i++)
		all[i] = f32_to_e4m3(f[i] / scale);
	memcpy(codes, all, n);
	return scale;
}

static void unpack_group(enum dtype type, const uint8_t *codes, size_t n, float scale, unsigned char *x)
{
	uint16_t half[FP8_BLOCK];
	float f[FP8_BLOCK];

	for (size_t i = 0; i < n; i++)
		f[i] = code_value[codes[i]];
	for (size_t i = n; i < FP8_BLOCK; i++)
		f[i] = 0;
	for (int i = 0; i < FP8_BLOCK; i++)
		f[i] *= scale;
	for (int i = 0; i < FP8_BLOCK; i++)
		half[i] = f32_to_bf16(f[i]);
	if (type == DT_BF16)
		memcpy(x, half, n * sizeof(*half));
	else
		memcpy(x, f, n * sizeof(*f));
}

static size_t group_size(size_t latent, size_t g)
{
	return latent - g * FP8_BLOCK < FP8_BLOCK ? latent - g * FP8_BLOCK : FP8_BLOCK;
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
			float scale = pack_group(l->type, x + g * FP8_BLOCK * element, group_size(latent, g),
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
		for (size_t g = 0; g < groups; g++) {
			float scale;

			memcpy(&scale, in + scale_at + (r * groups + g) * sizeof(scale), sizeof(scale));
			unpack_group(l->type, in + r * latent + g * FP8_BLOCK, group_size(latent, g), scale,
				x + g * FP8_BLOCK * element);
		}
		memcpy(x + latent * element, in + rope_at + r * rope * element, rope * element);
	}
}
