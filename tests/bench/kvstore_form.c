/*
 * Real KV of the example model, block by block, in the forms in which a store may keep it: as it is, compressed by zstd
 * level 1, the same with the two bytes of BF16 taken apart, and FP8.  What is left of it, how fast it goes in and comes
 * out on one CPU, how wrong it is then; and at which rate of a disk compression would pay.
 */
#include <jansson.h>
#include <math.h>
#include <zstd.h>

#include "beside.h"
#include "frame/messages.h"
#include "store/block.h"

enum { TURNS = 8, ROUNDS = 5, TOKENS = 64, V3_BLOCK = 64 * 61 * 576 * 2 };
static const char model[] = "examples/models/tiny-r1";

struct blocks {
	struct block_layout layout;
	uint8_t *p;               /* [n, layers, tokens, latent + rope] */
	size_t n, cap, bytes;     /* bytes: of one */
};

struct form {
	const char *name;
	size_t (*in)(const struct blocks *b, const uint8_t *block, uint8_t *stored, size_t cap);
	void (*out)(const struct blocks *b, const uint8_t *stored, size_t n, uint8_t *block);
};

static uint8_t *spare; /* [bytes] between two steps */

/* ---- the forms ---- */

static size_t copy_in(const struct blocks *b, const uint8_t *block, uint8_t *stored, size_t cap)
{
	(void)cap;
	memcpy(stored, block, b->bytes);
	return b->bytes;
}

static void copy_out(const struct blocks *b, const uint8_t *stored, size_t n, uint8_t *block)
{
	(void)b;
	memcpy(block, stored, n);
}

static size_t compress(const uint8_t *from, size_t n, uint8_t *to, size_t cap)
{
	size_t made = ZSTD_compress(to, cap, from, n, 1);

	if (ZSTD_isError(made))
		die("zstd: %s", ZSTD_getErrorName(made));
	return made;
}

static void decompress(const uint8_t *from, size_t n, uint8_t *to, size_t want)
{
	if (ZSTD_decompress(to, want, from, n) != want)
		die("zstd: wrong size");
}

static size_t zstd_in(const struct blocks *b, const uint8_t *block, uint8_t *stored, size_t cap)
{
	return compress(block, b->bytes, stored, cap);
}

static void zstd_out(const struct blocks *b, const uint8_t *stored, size_t n, uint8_t *block)
{
	decompress(stored, n, block, b->bytes);
}

static size_t planes_in(const struct blocks *b, const uint8_t *block, uint8_t *stored, size_t cap)
{
	const struct iovec iov = { (void *)(uintptr_t)block, b->bytes };

	store_payload_split(2, &iov, 1, b->bytes, spare);
	return compress(spare, b->bytes, stored, cap);
}

static void planes_out(const struct blocks *b, const uint8_t *stored, size_t n, uint8_t *block)
{
	const struct store_item item = { .size = b->bytes, .planes = 2 };

	decompress(stored, n, spare, b->bytes);
	store_item_plain(&item, spare, block);
}

static size_t fp8_in(const struct blocks *b, const uint8_t *block, uint8_t *stored, size_t cap)
{
	size_t memory, n;

	if (!block_sizes(&b->layout, &memory, &n) || memory != b->bytes || n > cap)
		die("the sizes of a block do not agree");
	if (!block_pack(&b->layout, block, stored))
		die("a block that is not finite");
	return n;
}

static void fp8_out(const struct blocks *b, const uint8_t *stored, size_t n, uint8_t *block)
{
	(void)n;
	block_unpack(&b->layout, stored, block);
}

static size_t fp8_zstd_in(const struct blocks *b, const uint8_t *block, uint8_t *stored, size_t cap)
{
	return compress(spare, fp8_in(b, block, spare, cap), stored, cap);
}

static void fp8_zstd_out(const struct blocks *b, const uint8_t *stored, size_t n, uint8_t *block)
{
	size_t memory, plain;

	if (!block_sizes(&b->layout, &memory, &plain))
		die("the sizes of a block do not agree");
	decompress(stored, n, spare, plain);
	block_unpack(&b->layout, spare, block);
}

static const struct form forms[] = {
	{ "as it is (memcpy)", copy_in, copy_out },
	{ "zstd 1", zstd_in, zstd_out },
	{ "zstd 1, byte planes", planes_in, planes_out },
	{ "FP8", fp8_in, fp8_out },
	{ "FP8, zstd 1", fp8_zstd_in, fp8_zstd_out },
};

/* ---- measuring ---- */

/* Root of the mean square of the difference, in parts of that of the values: of the latents, and of the rest. */
static double wrong(const struct blocks *b, const uint8_t *x, const uint8_t *y, bool latent)
{
	size_t dim = b->layout.latent + b->layout.rope;
	double diff = 0, sum = 0;

	for (size_t i = 0; i < b->n * b->bytes / 2; i++) {
		uint16_t u, v;

		if ((i % dim < b->layout.latent) != latent)
			continue;
		memcpy(&u, x + 2 * i, 2);
		memcpy(&v, y + 2 * i, 2);
		diff += pow((double)bf16_to_f32(u) - (double)bf16_to_f32(v), 2);
		sum += pow((double)bf16_to_f32(u), 2);
	}
	return sqrt(diff / sum);
}

static void measure(const struct blocks *b, const struct form *f)
{
	size_t cap = ZSTD_compressBound(b->bytes), *sizes = mem_calloc(b->n, sizeof(*sizes)), sum = 0;
	uint8_t *stored = malloc(b->n * cap), *back = malloc(b->n * b->bytes);
	double in[ROUNDS], out[ROUNDS], all = (double)(b->n * b->bytes), gbs[2], left;

	if (!sizes || !stored || !back)
		die("out of memory");
	for (int r = 0; r < ROUNDS; r++) {
		double start = cpu_seconds(0);

		for (size_t i = 0; i < b->n; i++)
			sizes[i] = f->in(b, b->p + i * b->bytes, stored + i * cap, cap);
		in[r] = cpu_seconds(0) - start;
		start = cpu_seconds(0);
		for (size_t i = 0; i < b->n; i++)
			f->out(b, stored + i * cap, sizes[i], back + i * b->bytes);
		out[r] = cpu_seconds(0) - start;
	}
	for (size_t i = 0; i < b->n; i++)
		sum += sizes[i];
	gbs[0] = all / median(in, ROUNDS) * 1e-9;
	gbs[1] = all / median(out, ROUNDS) * 1e-9;
	left = (double)sum / all;
	printf("%-24s %8.3f %8.3f %8.2f %8.2f   ", f->name, left, 1 / left, gbs[0], gbs[1]);
	if (memcmp(back, b->p, b->n * b->bytes) == 0)
		printf("exact");
	else
		printf("latents %.2f %%, rope %.2f %%", 100 * wrong(b, b->p, back, true),
			100 * wrong(b, b->p, back, false));
	if (f->in != copy_in) /* bytes / disk against left bytes / disk + bytes / speed */
		printf(";  pays below %.2f GB/s of a disk's reading, %.2f of its writing", gbs[1] * (1 - left),
			gbs[0] * (1 - left));
	putchar('\n');
	free(sizes);
	free(stored);
	free(back);
}

/* ---- blocks of the example model ---- */

static void put_turn(json_t *messages, const char *role, json_t *content)
{
	json_array_append_new(messages, json_pack("{s:s, s:O}", "role", role, "content", content));
}

/* Dialogues of the exam's questions with their answers, one a line. */
static void make_dialogues(const char *path)
{
	FILE *from = fopen("tests/golden/eval/problems.jsonl", "r"), *to = fopen(path, "w");
	json_t *messages = json_array();
	char line[10000];

	if (!from || !to)
		die("no exam");
	for (size_t i = 1; fgets(line, sizeof(line), from); i++) {
		json_t *row = json_loads(line, 0, NULL);
		json_t *asked = json_array_get(json_object_get(row, "prompt"), 0);

		put_turn(messages, "user", json_object_get(asked, "content"));
		if (i % TURNS) {
			put_turn(messages, "assistant", json_object_get(row, "answer"));
		} else {
			json_t *request = json_pack("{s:O}", "messages", messages);

			json_dumpf(request, to, JSON_COMPACT);
			fputc('\n', to);
			json_decref(request);
			json_array_clear(messages);
		}
		json_decref(row);
	}
	json_decref(messages);
	fclose(from);
	fclose(to);
}

static void add_block(struct blocks *b, const struct frame *f)
{
	struct kv_block kv;
	struct frame_tensor t;
	struct ds_err err;
	uint8_t *more;

	if (kv_block_get(f, &kv, &t, &err))
		die("%s", err.text);
	if (kv.count != TOKENS)
		return; /* a prompt's end */
	if (t.type != DT_BF16 || t.ndim != 3 || t.shape[1] != TOKENS || t.shape[2] != b->layout.latent + b->layout.rope)
		die("KV of another shape");
	b->layout.layers = t.shape[0];
	b->bytes = t.nbytes;
	more = mem_more(b->p, &b->cap, b->n, b->bytes);
	if (!more)
		die("out of memory");
	b->p = more;
	memcpy(b->p + b->n++ * b->bytes, f->data + t.offset, t.nbytes);
}

static void read_blocks(struct blocks *b, const char *path)
{
	enum frame_event ev = FRAME_AGAIN;
	int fd = open(path, O_RDONLY), rc;
	struct frame_reader *r;
	struct frame *f;
	struct ds_err err;

	rc = frame_reader_new(&r, fd, path, 0, &err);
	while (!rc && ev != FRAME_EOF) {
		rc = frame_reader_next(r, &ev, &f, &err);
		if (!rc && ev == FRAME_BODY && f->type == FRAME_KV)
			add_block(b, f);
	}
	if (rc)
		die("%s", err.text);
	frame_reader_free(r);
	close(fd);
}

/* The first layer's latents depend on the token alone: with three layers, their repeats say too much. */
static void drop_layer(struct blocks *b)
{
	size_t layer = b->bytes / b->layout.layers, left = b->bytes - layer;

	for (size_t i = 0; i < b->n; i++)
		memmove(b->p + i * left, b->p + i * b->bytes + layer, left);
	b->bytes = left;
	b->layout.layers--;
}

/* As many together as make a block of DeepSeek-V3: zstd has one table for each 128 KB, here for both planes. */
static void join_blocks(struct blocks *b)
{
	size_t k = V3_BLOCK / b->bytes;

	k = k < b->n ? k : b->n;
	b->n /= k;
	b->bytes *= k;
	b->layout.layers *= k;
	free(spare);
	spare = malloc(ZSTD_compressBound(b->bytes));
	if (!spare)
		die("out of memory");
}

static bool make_blocks(struct blocks *b)
{
	const char *build = getenv("DS_BUILD");
	char command[2000];
	int n = snprintf(command, sizeof(command),
		"PATH=%s/bin:$PATH; ds-token -m %s encode --jsonl <%s | ds-prefill -m %s >%s",
		build ? build : "build", model, in_scratch("dialogues"), model, in_scratch("kv"));

	make_dialogues(in_scratch("dialogues"));
	if (n < 0 || (size_t)n >= sizeof(command) || system(command))
		return false;
	read_blocks(b, in_scratch("kv"));
	spare = malloc(ZSTD_compressBound(b->bytes));
	return b->n && spare;
}

static void report(const struct blocks *b, const char *what)
{
	printf("%zu block%s of %zu bytes (%d tokens, %zu layers, 128 latents and 32 rotated of BF16), %s\n", b->n,
		plural(b->n), b->bytes, TOKENS, (size_t)b->layout.layers, what);
	printf("%-24s %8s %8s %8s %8s   error\n", "one CPU", "left", "ratio", "GB/s in", "GB/s out");
	for (size_t i = 0; i < ARRAY_LEN(forms); i++)
		measure(b, &forms[i]);
}

int main(void)
{
	struct blocks b = { .layout = { .type = DT_BF16, .latent = 128, .rope = 32, .tokens = TOKENS,
		.form = BLOCK_FP8 } };

	if (!scratch_begin(1 << 27) || !make_blocks(&b)) {
		printf("SKIP: no KV of '%s'\n", model);
		return 0;
	}
	report(&b, "as stored");
	drop_layer(&b);
	join_blocks(&b);
	report(&b, "the first of three left out");
	free(b.p);
	free(spare);
	return 0;
}
