/* Reads every value of a model. */
#include <string.h>

#include "model/checkpoint.h"
#include "model/model.h"

/* Index of the first value that is NaN or infinite, or n.  Blocks are tested as a whole, so that the loop vectorises.
 */
static size_t bad16(const unsigned char *p, size_t n, uint16_t exponent)
{
	for (size_t i = 0; i < n;) {
		size_t k = n - i < 1024 ? n - i : 1024;
		uint16_t h[1024];
		unsigned bad = 0;

		memcpy(h, p + 2 * i, 2 * k);
		for (size_t j = 0; j < k; j++)
			bad |= (h[j] & exponent) == exponent;
		for (size_t j = 0; bad && j < k; j++)
			if ((h[j] & exponent) == exponent)
				return i + j;
		i += k;
	}
	return n;
}

static size_t bad32(const unsigned char *p, size_t n)
{
	for (size_t i = 0; i < n;) {
		size_t k = n - i < 1024 ? n - i : 1024;
		uint32_t w[1024];
		unsigned bad = 0;

		memcpy(w, p + 4 * i, 4 * k);
		for (size_t j = 0; j < k; j++)
			bad |= (w[j] & 0x7f800000u) == 0x7f800000u;
		for (size_t j = 0; bad && j < k; j++)
			if ((w[j] & 0x7f800000u) == 0x7f800000u)
				return i + j;
		i += k;
	}
	return n;
}

static size_t bad8(const unsigned char *p, size_t n)
{
	for (size_t i = 0; i < n;) {
		size_t k = n - i < 4096 ? n - i : 4096;
		unsigned char bad = 0;

		for (size_t j = 0; j < k; j++)
			bad |= (p[i + j] & 0x7f) == 0x7f;
		for (size_t j = 0; bad && j < k; j++)
			if ((p[i + j] & 0x7f) == 0x7f)
				return i + j;
		i += k;
	}
	return n;
}

static size_t first_bad(const struct st_tensor *t, size_t n)
{
	switch (t->type) {
	case DT_F32: return bad32(t->data, n);
	case DT_BF16: return bad16(t->data, n, 0x7f80);
	case DT_F16: return bad16(t->data, n, 0x7c00);
	case DT_F8_E4M3: return bad8(t->data, n);
	default: return n;
	}
}

int model_verify(const struct model *m, struct ds_err *err)
{
	for (size_t i = 0; i < m->files->count; i++) {
		const struct ckpt_tensor *e = m->files->order[i];
		size_t n = e->used ? e->t->bytes / dtype_size(e->t->type) : 0, at = first_bad(e->t, n);

		if (at < n)
			return err_set(err, DS_DATA,
				"cannot use '%s': tensor '%.*s' has a value that is not finite, at element %zu",
				e->file->path, (int)e->t->name_len, e->t->name, at);
	}
	return 0;
}
