/* Operands as float32, for sets whose products are of float32: a unit is one element.  See attn_body.h. */

static inline VF v_mac(VF acc, const unit_t *a, const unit_t *b)
{
	return v_fma(v_set1(*a), v_load(b), acc);
}

static inline void put_p(unit_t *unit, VF lo, VF hi, bool round)
{
	(void)hi;
	v_store(unit, round ? v_round_bf16(lo) : lo);
}

/* A query as column 0 of units [kdim, lanes]. */
static void put_query(const struct isa *isa, unit_t *column, size_t lanes, const float *q, size_t kdim, bool round,
	float *row)
{
	memcpy(row, q, kdim * sizeof(*row));
	if (round)
		isa->round(row, kdim);
	for (size_t k = 0; k < kdim; k++)
		column[k * lanes] = row[k];
}

static void expanded_operands(const struct attn_task *t, const struct expanded_scratch *x, size_t n, struct look *l)
{
	(void)t;
	(void)n;
	l->k = x->k;
	l->ldk = x->ldk;
	l->ksteps = x->kdim;
	l->v = x->v;
}

/* A row of weights as float32. */
static void widen_row(float *y, const struct mat *m, size_t r)
{
	const void *row = mat_at(m, r, 0);
	size_t j = 0;

	for (; j + VL <= m->cols; j += VL)
		switch (m->type) {
		case DT_F32:
			v_store(y + j, v_load((const float *)row + j));
			break;
		case DT_BF16:
			v_store(y + j, v_load_bf16((const uint16_t *)row + j));
			break;
		case DT_F8_E4M3:
			v_store(y + j, v_mul(v_mul(v_load_f8((const uint8_t *)row + j), v_set1(256.0f)),
				v_set1(mat_scale(m, r, j))));
			break;
		default:
			mat_widen(y + j, m, r, j, VL);
		}
	mat_widen(y + j, m, r, j, m->cols - j);
}

enum { QUERY_ROWS = 2, QUERY_VECS = 8 };

/* 2 VL weights from element i on; f: what codes lack. */
INLINE void widen2(const enum dtype type, VF *y, const void *p, size_t i, VF f)
{
	switch (type) {
	case DT_F32:
		y[0] = v_load((const float *)p + i);
		y[1] = v_load((const float *)p + i + VL);
		break;
	case DT_BF16:
		y[0] = v_load_bf16((const uint16_t *)p + i);
		y[1] = v_load_bf16((const uint16_t *)p + i + VL);
		break;
	default:
		v_load_f8x2(y, (const uint8_t *)p + i);
		y[0] = v_mul(y[0], f);
		y[1] = v_mul(y[1], f);
	}
}

/* The product of few rows without a copy of the weights, in the same order, some vectors of columns at a time: the
 * more, the longer the pieces in which memory is read.  They lie in one block of scales. */
INLINE void query_strips(const struct attn_task *t, const struct mat *w, const enum dtype type, const size_t rows,
	const size_t vecs)
{
	for (size_t j = 0; j < w->cols; j += vecs * VL) {
		VF c[QUERY_ROWS][QUERY_VECS];

#pragma GCC unroll 8
		for (size_t i = 0; i < rows * vecs; i++)
			c[i / vecs][i % vecs] = v_zero();
		for (size_t r = 0; r < w->rows; r++) {
			const char *p = mat_at(w, r, j);
			VF f = type == DT_F8_E4M3 ? v_set1(256.0f * mat_scale(w, r, j)) : v_zero();

			/* the columns that come next */
			__builtin_prefetch(p + vecs * VL * weight_size(type), 0, 2);
			__builtin_prefetch(p + vecs * VL * weight_size(type) + 64, 0, 2);
#pragma GCC unroll 8
			for (size_t v = 0; v < vecs; v += 2) {
				VF x[2];

				widen2(type, x, p, v * VL, f);
#pragma GCC unroll 4
				for (size_t i = 0; i < 2 * rows; i++)
					c[i / 2][v + i % 2] = v_fma(v_set1(t->queries[i / 2][r]), x[i % 2],
						c[i / 2][v + i % 2]);
			}
		}
#pragma GCC unroll 8
		for (size_t i = 0; i < rows * vecs; i++)
			v_store(t->latent + i / vecs * t->ld + j + i % vecs * VL, c[i / vecs][i % vecs]);
	}
}

INLINE void query_one_type(const struct attn_task *t, const struct mat *w, const enum dtype type)
{
	if (t->rows == 1)
		query_strips(t, w, type, 1, QUERY_VECS);
	else
		query_strips(t, w, type, 2, QUERY_VECS / 2);
}

static bool query_few(const struct attn_task *t, const struct mat *w)
{
	if (t->rows > QUERY_ROWS || w->cols % (QUERY_VECS * VL))
		return false;
	switch (w->type) {
	case DT_F32:
		query_one_type(t, w, DT_F32);
		return true;
	case DT_BF16:
		query_one_type(t, w, DT_BF16);
		return true;
	case DT_F8_E4M3:
		query_one_type(t, w, DT_F8_E4M3);
		return true;
	default:
		return false;
	}
}

static void query_operands(const struct attn_task *t, const struct query_scratch *x, const struct mat *w,
	struct product *p)
{
	float *q = x->q;

	p->a = q;
	p->ar = w->rows;
	p->ak = 1;
	p->steps = w->rows;
	p->b = x->w;
	p->ldb = x->ld;
	for (size_t i = 0; i < t->rows; i++)
		memcpy(q + i * w->rows, t->queries[i], w->rows * sizeof(*q));
	for (size_t r = 0; r < w->rows; r++)
		widen_row((float *)x->w + r * x->ld, w, r);
}

/* Pages of float32 are read where they lie, if whole vectors of values can be. */
static void absorbed_operands(const struct attn_task *t, const struct absorbed_scratch *x, size_t p, size_t n,
	struct look *l)
{
	const struct kv_pages *kv = &t->seg->kv;
	float *k = x->k;

	l->ksteps = x->kdim;
	if (kv->type == DT_F32 && !t->shape->round && t->shape->lora % ATTN_LANES == 0) {
		l->k = l->v = kv_row(kv, p, 0);
		l->ldk = l->ldv = kv->row_ld;
		return;
	}
	l->k = l->v = k;
	l->ldk = l->ldv = x->ld;
	for (size_t i = 0; i < n; i++, k += x->ld) {
		const void *row = kv_row(kv, p, i);
		size_t j = 0;
		memset(k + x->kdim, 0, (x->ld - x->kdim) * sizeof(*k));
		if (kv->type == DT_F32) {
			memcpy(k, row, x->kdim * sizeof(*k));
			if (t->shape->round)
				t->isa->round(k, x->kdim);
			continue;
		}
		for (; j + VL <= x->kdim; j += VL)
			v_store(k + j, v_load_bf16((const uint16_t *)row + j));
		for (; j < x->kdim; j++)
			k[j] = bf16_to_f32(((const uint16_t *)row)[j]);
	}
}
