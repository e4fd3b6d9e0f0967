#include "base/tensor.h"

#include <math.h>
#include <string.h>

static const struct { const char *name; size_t size; } dtypes[DT_COUNT] = {
	[DT_NONE] = { "NONE", 0 },
	[DT_F32] = { "F32", 4 },
	[DT_F16] = { "F16", 2 },
	[DT_BF16] = { "BF16", 2 },
	[DT_F8_E4M3] = { "F8_E4M3", 1 },
	[DT_I32] = { "I32", 4 },
	[DT_U32] = { "U32", 4 },
	[DT_I64] = { "I64", 8 },
	[DT_U8] = { "U8", 1 },
};

const char *dtype_name(enum dtype t)
{
	return (unsigned)t < DT_COUNT ? dtypes[t].name : "NONE";
}

enum dtype dtype_parse(const char *name)
{
	for (unsigned t = DT_NONE + 1; t < DT_COUNT; t++)
		if (strcmp(name, dtypes[t].name) == 0)
			return (enum dtype)t;
	return DT_NONE;
}

size_t dtype_size(enum dtype t)
{
	return (unsigned)t < DT_COUNT ? dtypes[t].size : 0;
}

struct mat mat_rows(const struct mat *m, size_t r0, size_t n)
{
	struct mat s = *m;
	size_t block = (m->row0 + r0) / FP8_BLOCK;

	s.data = (const char *)m->data + r0 * m->ld * dtype_size(m->type);
	if (m->scale)
		s.scale = m->scale + block * m->scale_ld;
	s.row0 = (m->row0 + r0) % FP8_BLOCK;
	s.rows = n;
	return s;
}

float f16_to_f32(uint16_t h)
{
	unsigned e = h >> 10 & 31, m = h & 1023;
	float v;

	if (e == 31)
		v = m ? NAN : INFINITY;
	else if (e)
		v = ldexpf((float)(m | 1024), (int)e - 25);
	else
		v = ldexpf((float)m, -24);
	return h >> 15 ? -v : v;
}

float e4m3_to_f32(uint8_t code)
{
	unsigned e = code >> 3 & 15, m = code & 7;
	float v;

	if (e == 15 && m == 7)
		v = NAN;
	else if (e)
		v = ldexpf((float)(m | 8), (int)e - 10);
	else
		v = ldexpf((float)m, -9);
	return code >> 7 ? -v : v;
}

bool dtype_is_real(enum dtype t)
{
	return t == DT_F32 || t == DT_F16 || t == DT_BF16 || t == DT_F8_E4M3;
}

double value_at(enum dtype t, const void *at, uint64_t i)
{
	const uint8_t *p = (const uint8_t *)at + i * dtype_size(t);

	switch (t) {
	case DT_F32: { float v; memcpy(&v, p, 4); return (double)v; }
	case DT_F16: { uint16_t v; memcpy(&v, p, 2); return (double)f16_to_f32(v); }
	case DT_BF16: { uint16_t v; memcpy(&v, p, 2); return (double)bf16_to_f32(v); }
	case DT_F8_E4M3: return (double)e4m3_to_f32(*p);
	case DT_I32: { int32_t v; memcpy(&v, p, 4); return v; }
	case DT_U32: { uint32_t v; memcpy(&v, p, 4); return v; }
	case DT_I64: { int64_t v; memcpy(&v, p, 8); return (double)v; }
	default: return *p;
	}
}

int64_t int_at(enum dtype t, const void *at, uint64_t i)
{
	int64_t v;

	if (t != DT_I64) /* exact as a double */
		return (int64_t)value_at(t, at, i);
	memcpy(&v, (const uint8_t *)at + i * sizeof v, sizeof v);
	return v;
}
