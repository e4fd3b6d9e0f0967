/* KV blocks as items of a store: keys, what is compared before a block is used, the form FP8. */
#include "tap.h"

#include <math.h>

#include "base/mem.h"
#include "frame/frame.h"
#include "store/block.h"

enum { TOKENS = 64, LATENT = 200, ROPE = 32, LAYERS = 3, DIM = LATENT + ROPE };

static struct block_layout layout(void)
{
	return (struct block_layout){ .model = "0123456789abcdef0123456789abcdef", .arith = "F8_E4M3/bf16",
		.kernels = "avx2", .type = DT_BF16, .layers = LAYERS, .mtp = 1, .latent = LATENT, .rope = ROPE,
		.tokens = TOKENS };
}

static uint32_t ids[TOKENS + 1];

static struct block_id first_block(const struct block_layout *l)
{
	for (uint32_t i = 0; i <= TOKENS; i++)
		ids[i] = 7 * i + 3;
	return (struct block_id){ .parent = block_root(l), .ids = ids, .first = 0, .decoded = TOKENS };
}

/* ---- keys ---- */

static const char *hex_of(struct store_key k)
{
	static char hex[4][STORE_KEY_HEX];
	static int n;

	n = (n + 1) % 4;
	store_key_hex(&k, hex[n]);
	return hex[n];
}

/* The same on every machine, for ever: other processes, and last year's, have named their blocks so. */
static void test_golden(void)
{
	struct block_layout l = layout();
	struct block_id id = first_block(&l);
	struct store_key k = block_key(&l, &id);

	tap_is_str(hex_of(block_root(&l)), "01407c7618c11a5d6eb01528dbcf77ce",
		"the key that stands for a model and layout");
	tap_is_str(hex_of(k), "f7b1953eda2168d75e7e703f8439f39f", "a first block's key");
	id.parent = k;
	id.first = TOKENS;
	id.decoded = 17;
	tap_is_str(hex_of(block_key(&l, &id)), "bed399d292ca43b552ee32f7e51dc91d",
		"the key of a block behind it, with decode's rows");
	l.mtp = 0;
	tap_is_str(hex_of(block_key(&l, &id)), "9e821fc58df1ff45c759db55d375e3c2",
		"a key without MTP: the token behind the block is no part of it");
}

/* Every part of a layout and of an id in turn made another. */
static bool change(struct block_layout *l, struct block_id *id, int part)
{
	switch (part) {
	case 0: l->model[0] ^= 1; return true;
	case 1: l->arith[1] ^= 1; return true;
	case 2: l->kernels[3] ^= 1; return true;
	case 3: l->type = DT_F32; return true;
	case 4: l->layers++; return true;
	case 5: l->mtp = 0; return true;
	case 6: l->latent++, l->rope--; return true;
	case 7: l->tokens = 128; return true;
	case 8: l->form = BLOCK_FP8; return true;
	case 9: id->parent.b[15] ^= 1; return true;
	case 10: id->first += 64; return true;
	case 11: id->decoded--; return true;
	case 12: ids[0]++; return true;
	case 13: ids[TOKENS - 1]++; return true;
	case 14: ids[TOKENS]++; return true; /* with MTP the rows depend on it */
	default: return false;
	}
}

static void test_parts(void)
{
	struct block_layout l = layout();
	struct block_id id = first_block(&l);
	struct store_key root = block_root(&l), key = block_key(&l, &id);
	uint32_t more[129] = { 0 };
	int wrong = 0;

	for (int part = 0;; part++) {
		l = layout();
		id = first_block(&l);
		if (!change(&l, &id, part))
			break;
		if (part < 9) { /* of the layout: the root is another, so is all that follows */
			struct store_key other = block_root(&l);

			wrong += store_key_equal(&other, &root);
			continue;
		}
		if (part == 7)
			id.ids = more;
		wrong += store_key_equal(&(struct store_key){ .b = { 0 } }, &key);
		key = block_key(&l, &id);
		l = layout();
		id = first_block(&l);
		struct store_key right = block_key(&l, &id);

		wrong += store_key_equal(&key, &right);
	}
	tap_is_int(wrong, 0, "whatever is another, the key is another");
}

/* ---- items ---- */

/* What a reader of the store is given for this id: an item frame, parsed. */
struct forged {
	struct meta_builder *b;
	struct frame_writer *w;
	struct frame_parser *p;
	struct frame f;
	struct store_item item;
};

static int forge(struct forged *x, const struct store_key *key, const struct block_layout *l, const struct block_id *id,
	struct ds_err *err)
{
	struct frame_front front;
	struct store_item say = { .key = *key };
	size_t memory, stored;
	uint8_t *payload;
	int rc;

	block_sizes(l, &memory, &stored);
	payload = calloc(1, stored);
	if (!x->b) {
		x->b = meta_new();
		if (!x->b || !payload || frame_writer_new(&x->w, -1, "item", err) || frame_parser_new(&x->p, err))
			tap_bail("no memory");
	}
	say.size = stored;
	meta_reset(x->b);
	meta_put_cstr(x->b, "op", "put");
	store_item_put(x->b, &say);
	block_meta_put(x->b, l, id);
	rc = frame_encode(x->w, FRAME_STORE, 0, 0, 0, x->b, &(struct iovec){ payload, stored }, 1, true, &front, err);
	if (!rc)
		rc = frame_parse(x->p, front.p, front.n, &x->f, err);
	if (!rc)
		rc = store_item_get(&x->f, &x->item, err);
	free(payload);
	return rc;
}

/* Under the right key lies what another says. */
static void test_forged(void)
{
	struct block_layout l = layout(), other;
	struct block_id id = first_block(&l), lie;
	struct store_key key = block_key(&l, &id);
	static uint32_t truth[129], many[129];
	struct forged x = { 0 };
	struct ds_err err = { 0 };
	int taken = 0, cannot = 0;

	memcpy(truth, ids, sizeof(ids));
	id.ids = truth;
	tap_ok(forge(&x, &key, &l, &id, &err) == 0 && block_check(&x.item, &l, &id, &err) == 0,
		"a block is what it says: %s", err.text);
	tap_ok(store_key_equal(&x.item.key, &key), "its key is");
	for (int part = 0;; part++) {
		other = layout();
		lie = first_block(&other);
		if (!change(&other, &lie, part))
			break;
		if (other.tokens > TOKENS) {
			memcpy(many, ids, sizeof(ids));
			lie.ids = many;
		}
		cannot += forge(&x, &key, &other, &lie, &err) != 0;
		if (block_check(&x.item, &l, &id, &err) != DS_NO) {
			tap_diag("part %d is not compared", part);
			taken++;
		}
	}
	tap_is_int(taken + cannot, 0, "an item under the right key that differs in any part is refused");
	meta_free(x.b);
	frame_writer_free(x.w);
	frame_parser_free(x.p);
}

/* ---- sizes and forms ---- */

static void test_sizes(void)
{
	struct block_layout l = layout();
	size_t memory = 0, stored = 0;

	tap_ok(block_sizes(&l, &memory, &stored) && memory == LAYERS * TOKENS * DIM * 2 && stored == memory,
		"in the exact form a block is stored as it is");
	l = (struct block_layout){ .type = DT_BF16, .layers = 61, .latent = 512, .rope = 64, .tokens = 64,
		.form = BLOCK_FP8 };
	tap_ok(block_sizes(&l, &memory, &stored) && memory == 4497408 && stored == (size_t)61 * 64 * 656,
		"V3: 4,497,408 bytes, in FP8 656 a token and layer");
	l.layers = (uint64_t)1 << 60;
	tap_ok(!block_sizes(&l, &memory, &stored), "too many layers are no block");
	l = layout();
	l.tokens = 4096;
	tap_ok(!block_sizes(&l, &memory, &stored), "too many tokens are no block");
}

static void fill(const struct block_layout *l, uint8_t *m, uint32_t seed)
{
	size_t n = (size_t)(l->layers * l->tokens) * DIM;

	for (size_t i = 0; i < n; i++) {
		float f;

		seed = seed * 1664525 + 1013904223;
		f = ((float)(seed >> 8) / 8388608.0f - 1.0f) * (i % 97 == 0 ? 300.0f : 2.0f);
		if (i / DIM == 5)
			f = 0.0f;
		if (l->type == DT_BF16)
			((uint16_t *)(void *)m)[i] = f32_to_bf16(f);
		else
			((float *)(void *)m)[i] = f;
	}
}

static double at(const struct block_layout *l, const uint8_t *m, size_t i)
{
	return value_at(l->type, m, i);
}

static void test_fp8(enum dtype type)
{
	struct block_layout l = layout();
	size_t memory, size, n = (size_t)LAYERS * TOKENS * DIM, worst = 0;
	uint8_t *m, *back, *stored, *again;

	l.type = type;
	l.form = BLOCK_FP8;
	if (!block_sizes(&l, &memory, &size))
		tap_bail("sizes");
	m = mem_aligned(memory);
	back = mem_aligned(memory);
	stored = mem_aligned(size);
	again = mem_aligned(size);
	fill(&l, m, 5);
	tap_ok(block_pack(&l, m, stored), "%s: packs", dtype_name(type));
	block_unpack(&l, stored, back);
	for (size_t i = 0; i < n; i++) {
		size_t col = i % DIM, group = col / FP8_BLOCK;
		double amax = 1e-4;

		for (size_t k = group * FP8_BLOCK; k < LATENT && k < (group + 1) * FP8_BLOCK; k++)
			amax = fmax(amax, fabs(at(&l, m, i - col + k)));
		if (col >= LATENT)
			worst += at(&l, m, i) != at(&l, back, i);
		else /* half of e4m3's last place, or of its least step; and bfloat16's */
			worst += fabs(at(&l, m, i) - at(&l, back, i)) >
				fmax(fabs(at(&l, m, i)) / 16, amax / 448 / 1024) * 1.01 + fabs(at(&l, m, i)) / 256;
	}
	tap_is_int((long long)worst, 0,
		"latents come back within E4M3's step of their 128, rotated parts as they were");
	memset(again, 0xa5, size);
	tap_ok(block_pack(&l, m, again) && memcmp(stored, again, size) == 0, "the same bytes each time, to the last");
	free(m);
	free(back);
	free(stored);
	free(again);
}

static void test_finite(enum dtype type)
{
	static const uint32_t bad[] = { 0x7f800000, 0xff800000, 0x7fc00000, 0xffc10000 };
	struct block_layout l = layout();
	size_t memory, stored, n = (size_t)LAYERS * TOKENS * DIM, size = dtype_size(type), missed = 0;
	size_t places[] = { 0, 1, 2, 3, LATENT, DIM - 1, n / 2 + 1, n - 2, n - 1 };
	uint8_t *m, *out;

	l.type = type;
	if (!block_sizes(&l, &memory, &stored))
		tap_bail("sizes");
	m = mem_aligned(memory);
	out = mem_aligned(memory);
	memset(m, 0x7f, memory); /* large, and all bits of the mantissa: 0x7f7f, 0x7f7f7f7f */
	tap_ok(block_finite(&l, m), "%s: large numbers are numbers", dtype_name(type));
	for (size_t i = 0; i < ARRAY_LEN(places); i++)
		for (size_t k = 0; k < ARRAY_LEN(bad); k++) {
			uint8_t was[4], *p = m + places[i] * size;

			memcpy(was, p, size);
			memcpy(p, (const uint8_t *)&bad[k] + 4 - size, size);
			l.form = BLOCK_EXACT;
			missed += block_finite(&l, m);
			l.form = BLOCK_FP8;
			missed += block_pack(&l, m, out);
			memcpy(p, was, size);
		}
	tap_is_int((long long)missed, 0, "an infinity or a NaN anywhere is seen");
	free(m);
	free(out);
}

int main(void)
{
	test_golden();
	test_parts();
	test_forged();
	test_sizes();
	test_fp8(DT_BF16);
	test_fp8(DT_F32);
	test_finite(DT_BF16);
	test_finite(DT_F32);
	return tap_done();
}
