/* Reads every value of a model. */
#include <string.h>

#include "model/checkpoint.h"
#include "model/model.h"

/* How a type says NaN or infinity: all bits of `ones` set (E4M3 has one NaN, 0x7f, and no infinity).  Lanes fill 64
 * bits. */
struct lanes {
	uint64_t ones, most, top; /* per lane: the bits, everything but the top bit, the top bit */
};

static const struct lanes *lanes_of(enum dtype t)
{
	static const struct lanes f32 = { 0x7f8000007f800000, 0x7fffffff7fffffff, 0x8000000080000000 };
	static const struct lanes bf16 = { 0x7f807f807f807f80, 0x7fff7fff7fff7fff, 0x8000800080008000 };
	static const struct lanes f16 = { 0x7c007c007c007c00, 0x7fff7fff7fff7fff, 0x8000800080008000 };
	static const struct lanes f8 = { 0x7f7f7f7f7f7f7f7f, 0x7f7f7f7f7f7f7f7f, 0x8080808080808080 };

	switch (t) {
	case DT_F32: return &f32;
	case DT_BF16: return &bf16;
	case DT_F16: return &f16;
	case DT_F8_E4M3: return &f8;
	default: return NULL;
	}
}

/* Eight bytes at a time: (bits xor ones) is 0 in a bad lane only, and adding `most` sets the top bit of every other
 * lane; no lane's sum reaches the next. */
static bool all_finite(const unsigned char *p, size_t n, const struct lanes *l)
{
	uint64_t ok = l->top, w;

	for (; n >= 8; n -= 8, p += 8) {
		memcpy(&w, p, 8);
		ok &= ((w & l->ones) ^ l->ones) + l->most;
	}
	w = 0;
	memcpy(&w, p, n);
	ok &= ((w & l->ones) ^ l->ones) + l->most;
	return ok == l->top;
}

/* Index of the first value that is not finite, or the number of values. */
static size_t first_bad(const struct st_tensor *t)
{
	const struct lanes *l = lanes_of(t->type);
	size_t size = dtype_size(t->type), n = t->bytes / size, chunk = 65536;

	for (size_t at = 0; l && at < t->bytes; at += chunk) {
		size_t bytes = t->bytes - at < chunk ? t->bytes - at : chunk;

		if (all_finite(t->data + at, bytes, l))
			continue;
		for (size_t i = at / size; i < (at + bytes) / size; i++)
			if (!all_finite(t->data + i * size, size, l))
				return i;
	}
	return n;
}

static int verify_values(const struct model *m, struct ds_err *err)
{
	for (size_t i = 0; i < m->files->count; i++) {
		const struct ckpt_tensor *e = m->files->order[i];
		size_t at;

		if (!e->used)
			continue;
		at = first_bad(e->t);
		if (at < e->t->bytes / dtype_size(e->t->type))
			return err_set(err, DS_DATA,
				"cannot use '%s': tensor '%.*s' has a value that is not finite, at element %zu",
				e->file->path, (int)e->t->name_len, e->t->name, at);
	}
	return 0;
}

int model_verify(const struct model *m, struct ds_err *err)
{
	/* the page at its end reads as zeros where a file was cut */
	return ckpt_result(m->files, verify_values(m, err), err);
}
