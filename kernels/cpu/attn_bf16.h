/* Operands as pairs of bfloat16: a unit is two elements along the sum, the earlier in the low half.  See
 * attn_body.h. */

static inline VF v_mac(VF acc, const unit_t *a, const unit_t *b)
{
	return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32((int)*a), (__m512bh)_mm512_loadu_si512(b));
}

static inline VF v_mac_low(VF acc, const unit_t *a, const unit_t *b)
{
	const __m512i low = _mm512_set1_epi32(0xffff);

	return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_and_si512(_mm512_set1_epi32((int)*a), low),
		(__m512bh)_mm512_and_si512(_mm512_loadu_si512(b), low));
}

static inline __m512i v_pair(VF lo, VF hi)
{
	__m512i l = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(lo));
	__m512i h = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(hi));

	return _mm512_or_si512(l, _mm512_slli_epi32(h, 16));
}

static inline void put_p(unit_t *unit, VF lo, VF hi, bool round)
{
	(void)round;
	_mm512_storeu_si512(unit, v_pair(lo, hi));
}

/* A row of float32 as pairs of its neighbours. */
static void pack_pairs(unit_t *dst, const float *src, size_t n)
{
	size_t j = 0;

	for (; j + 16 <= n; j += 16)
		_mm256_storeu_si256((__m256i *)(void *)(dst + j / 2), (__m256i)_mm512_cvtneps_pbh(v_load(src + j)));
	for (; j < n; j += 2)
		dst[j / 2] = f32_to_bf16(src[j]) | (j + 1 < n ? (unit_t)f32_to_bf16(src[j + 1]) << 16 : 0);
}

/* A query as column 0 of units [ceil(kdim / 2), lanes]. */
static void put_query(const struct isa *isa, unit_t *column, size_t lanes, const float *q, size_t kdim, bool round,
	float *row)
{
	const unit_t *unit = (const unit_t *)row;

	(void)isa;
	(void)round;
	pack_pairs((unit_t *)row, q, kdim);
	for (size_t k = 0; k < (kdim + 1) / 2; k++)
		column[k * lanes] = unit[k];
}

/* Two rows of BF16 (the later one may be NULL: zeros) as a row of units. */
static void pair_bf16(unit_t *dst, const uint16_t *lo, const uint16_t *hi, size_t n)
{
	/* unit i of the result: element i of lo, then element i of hi, which is 32 + i to the permutation */
	const __m512i i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const __m512i first = _mm512_add_epi32(_mm512_or_si512(i, _mm512_slli_epi32(i, 16)),
		_mm512_set1_epi32(32 << 16));
	const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(16 << 16 | 16));
	size_t j = 0;

	for (; j + 32 <= n; j += 32) {
		__m512i l = _mm512_loadu_si512(lo + j), h = hi ? _mm512_loadu_si512(hi + j) : _mm512_setzero_si512();
		_mm512_storeu_si512(dst + j, _mm512_permutex2var_epi16(l, first, h));
		_mm512_storeu_si512(dst + j + 16, _mm512_permutex2var_epi16(l, second, h));
	}
	for (; j < n; j++)
		dst[j] = (unit_t)lo[j] | (hi ? (unit_t)hi[j] << 16 : 0);
}

/* The same from float32, rounding. */
static void pair_f32(unit_t *dst, const float *lo, const float *hi, size_t n)
{
	size_t j = 0;

	for (; j + 16 <= n; j += 16)
		_mm512_storeu_si512(dst + j, v_pair(v_load(lo + j), hi ? v_load(hi + j) : v_zero()));
	for (; j < n; j++)
		dst[j] = f32_to_bf16(lo[j]) | (hi ? (unit_t)f32_to_bf16(hi[j]) << 16 : 0);
}

static bool query_few(const struct attn_task *t, const struct mat *w)
{
	(void)t, (void)w;
	return false;
}

/* Of BF16 weights; queries are rounded to it. */
static void query_operands(const struct attn_task *t, const struct query_scratch *x, const struct mat *w,
	struct product *p)
{
	unit_t *q = x->q, *row = x->w;

	p->a = q;
	p->ar = p->steps = (w->rows + 1) / 2;
	p->ak = 1;
	p->b = row;
	p->ldb = x->ld;
	for (size_t i = 0; i < t->rows; i++)
		pack_pairs(q + i * p->ar, t->queries[i], w->rows);
	for (size_t r = 0; r < w->rows; r += 2, row += x->ld)
		pair_bf16(row, mat_at(w, r, 0), r + 1 < w->rows ? mat_at(w, r + 1, 0) : NULL, w->cols);
}

static void expanded_operands(const struct attn_task *t, const struct expanded_scratch *x, size_t n, struct look *l)
{
	unit_t *k = x->k2, *v = x->v2;

	l->k = k;
	l->ldk = x->ldk / 2;
	l->ksteps = (x->kdim + 1) / 2;
	l->v = v;
	for (size_t i = 0; i < n; i++, k += l->ldk)
		pack_pairs(k, x->k + i * x->ldk, x->kdim);
	for (size_t i = 0; i < n; i += 2, v += x->ldv) {
		const float *row = x->v + i * x->ldv;
		pair_f32(v, row, i + 1 < n ? row + x->ldv : NULL, t->shape->v);
	}
}

/* Keys are read where they lie if rows are made of whole pairs; values are needed in pairs of tokens. */
static void absorbed_operands(const struct attn_task *t, const struct absorbed_scratch *x, size_t p, size_t n,
	struct look *l)
{
	const struct kv_pages *kv = &t->seg->kv;
	size_t units = (x->kdim + 1) / 2;
	bool direct = kv->type == DT_BF16 && x->kdim % 2 == 0 && kv->row_ld % 2 == 0 &&
		(uintptr_t)kv->pages[p] % 4 == 0;
	unit_t *k = x->k, *v = x->v;

	l->ksteps = units;
	l->k = direct ? kv->pages[p] : k;
	l->ldk = direct ? kv->row_ld / 2 : x->ld;
	l->v = v;
	l->ldv = x->ld;
	for (size_t i = 0; i < n && !direct; i++, k += x->ld) {
		k[units - 1] = 0;
		if (kv->type == DT_BF16)
			memcpy(k, kv_row(kv, p, i), x->kdim * 2);
		else
			pack_pairs(k, kv_row(kv, p, i), x->kdim);
	}
	for (size_t i = 0; i < n; i += 2, v += x->ld) {
		const void *lo = kv_row(kv, p, i), *hi = i + 1 < n ? kv_row(kv, p, i + 1) : NULL;
		if (kv->type == DT_BF16)
			pair_bf16(v, lo, hi, t->shape->lora);
		else
			pair_f32(v, lo, hi, t->shape->lora);
	}
}
