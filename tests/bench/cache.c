/*
 * Prompts of an hour of a chat service (shared/traces, anonymous block ids) against caches of some sizes: the part of
 * the input tokens that eviction policies give, with and without a crawler that asks as much and never the same again.
 *
 * A hit is the longest run of whole blocks from a prompt's front; its last token is never one.  LRU is compared with
 * the traces' own page.  The Azure traces have no ids: nothing can be said of their prefixes.
 *
 * The last row of each table is the real store in a directory, with small payloads and a capacity of so many items:
 * what whole segments, and moving what is still wanted, make of the policy.
 */
#include <inttypes.h>
#include <jansson.h>
#include <zstd.h>

#include "base/random.h"
#include "beside.h"
#include "policies.h"
#include "store/store.h"

enum { BLOCK = 512, SIZES = 6, SCAN_PROMPT = 24, MOST_BYTES = 64 << 20 };

static const size_t sizes[SIZES] = { 1000, 3000, 10000, 30000, 50000, 100000 };

struct trace {
	uint32_t *ids, *next;     /* [n] blocks of all prompts, and where each comes again */
	size_t *first;            /* [requests + 1] of a prompt's blocks in ids */
	uint32_t *tokens;         /* [requests] 0: a crawler's, not counted */
	size_t n, ids_cap, requests, first_cap, tokens_cap, blocks; /* blocks: ids are below */
	uint64_t total;           /* input tokens */
};

static void trace_free(struct trace *t)
{
	free(t->ids);
	free(t->next);
	free(t->first);
	free(t->tokens);
}

/* Begins a request; its blocks are added behind. */
static void trace_request(struct trace *t, uint32_t tokens)
{
	size_t *first = mem_more(t->first, &t->first_cap, t->requests + 1, sizeof(*first));
	uint32_t *counts = mem_more(t->tokens, &t->tokens_cap, t->requests, sizeof(*counts));

	if (!first || !counts)
		die("out of memory");
	first[t->requests] = t->n;
	counts[t->requests++] = tokens;
	t->first = first;
	t->tokens = counts;
	t->total += tokens;
}

static void trace_block(struct trace *t, uint32_t id)
{
	uint32_t *ids = mem_more(t->ids, &t->ids_cap, t->n, sizeof(*ids));

	if (!ids || id == POLICY_END)
		die("out of memory, or a bad id");
	ids[t->n++] = id;
	t->ids = ids;
	t->first[t->requests] = t->n;
	t->blocks = id >= t->blocks ? id + 1 : t->blocks;
}

static void trace_links(struct trace *t)
{
	uint32_t *seen = mem_array(t->blocks, sizeof(*seen));

	t->next = mem_array(t->n, sizeof(*t->next));
	if (!t->next || !seen)
		die("out of memory");
	memset(seen, 0xff, t->blocks * sizeof(*seen));
	for (size_t i = t->n; i-- > 0;) {
		t->next[i] = seen[t->ids[i]];
		seen[t->ids[i]] = (uint32_t)i;
	}
	free(seen);
}

/* The unpacked file; NULL: it is not there. */
static char *unpack(const char *path, size_t *n)
{
	FILE *f = fopen(path, "rb");
	char *packed = malloc(MOST_BYTES), *text = malloc(MOST_BYTES);
	size_t len;

	if (!packed || !text)
		die("out of memory");
	if (!f) {
		free(packed);
		free(text);
		return NULL;
	}
	len = fread(packed, 1, MOST_BYTES, f);
	fclose(f);
	*n = ZSTD_decompress(text, MOST_BYTES, packed, len);
	free(packed);
	if (ZSTD_isError(*n))
		die("the trace is broken");
	return text;
}

/* partial: the last block of a prompt is kept though it is not whole. */
static void trace_read(struct trace *t, const char *text, size_t n, bool partial)
{
	*t = (struct trace){ 0 };
	for (const char *end = text + n; text < end;) {
		const char *stop = memchr(text, '\n', (size_t)(end - text));
		size_t len = stop ? (size_t)(stop - text) : (size_t)(end - text), whole;
		json_t *row = json_loadb(text, len, 0, NULL), *ids = json_object_get(row, "hash_ids");
		json_int_t tokens = json_integer_value(json_object_get(row, "input_length"));

		if (!ids || tokens <= 0 || (size_t)tokens > json_array_size(ids) * BLOCK)
			die("a bad line in the trace");
		trace_request(t, (uint32_t)tokens);
		whole = partial ? json_array_size(ids) : (size_t)(tokens - 1) / BLOCK;
		for (size_t i = 0; i < whole; i++)
			trace_block(t, (uint32_t)json_integer_value(json_array_get(ids, i)));
		t->first[t->requests] = t->n;
		json_decref(row);
		text += len + 1;
	}
	trace_links(t);
}

/* The same with as many blocks of prompts that come once, evenly mixed in. */
static void trace_scanned(struct trace *to, const struct trace *from)
{
	size_t owed = 0, id = from->blocks;

	*to = (struct trace){ 0 };
	for (size_t r = 0; r < from->requests; r++) {
		trace_request(to, from->tokens[r]);
		to->first[to->requests] = to->n;
		for (size_t i = from->first[r]; i < from->first[r + 1]; i++, owed++)
			trace_block(to, from->ids[i]);
		for (; owed >= SCAN_PROMPT; owed -= SCAN_PROMPT) {
			trace_request(to, 0);
			for (int i = 0; i < SCAN_PROMPT; i++)
				trace_block(to, (uint32_t)id++);
		}
	}
	trace_links(to);
}

static size_t whole_hits(const struct trace *t, size_t r, size_t hits)
{
	size_t most = t->tokens[r] ? (t->tokens[r] - 1) / BLOCK : 0;

	return hits < most ? hits : most;
}

/* Percent of the input tokens. */
static double replay(const struct trace *t, struct cache *c)
{
	uint64_t hits = 0;

	for (size_t r = 0; r < t->requests; r++) {
		size_t at = t->first[r];

		hits += whole_hits(t, r, cache_request(c, t->ids + at, t->next + at, t->first[r + 1] - at));
	}
	return 100.0 * (double)(hits * BLOCK) / (double)t->total;
}

struct row {
	const char *name;
	enum policy policy;
	double small, ghosts;
	bool second;
};

static const struct row rows[] = {
	{ "LRU", POLICY_LRU, 0, 0, false },
	{ "FIFO", POLICY_FIFO, 0, 0, false },
	{ "S3-FIFO, small 0.1, ghosts 0.9", POLICY_S3, 0.1, 0.9, false },
	{ "S3-FIFO, small 0.1, ghosts 3", POLICY_S3, 0.1, 3, false },
	{ "S3-FIFO, small 0.5, ghosts 1", POLICY_S3, 0.5, 1, false },
	{ "S3-FIFO, small 0.5, ghosts 3", POLICY_S3, 0.5, 3, false },
	{ "the same, second time only", POLICY_S3, 0.5, 3, true },
	{ "Belady's bound", POLICY_BELADY, 0, 0, false },
};

static void print_row(const struct trace *t, const struct row *row)
{
	uint64_t written[SIZES];

	printf("%-32s", row->name);
	for (int i = 0; i < SIZES; i++) {
		struct cache c;

		if (!cache_init(&c, row->policy, sizes[i], t->blocks, row->small, row->ghosts))
			die("out of memory");
		c.second = row->second;
		printf(" %7.2f", replay(t, &c));
		written[i] = c.written + c.moved;
		cache_free(&c);
	}
	printf("  |");
	for (int i = 0; i < SIZES; i++)
		printf(" %4" PRIu64, written[i] / 1000);
	putchar('\n');
}

/* ---- the store itself ---- */

enum { VALUE = 1024, PROBE = 1000, PROMPT_MOST = 1024 };

struct replayed { struct store_session *ss; uint32_t id; const uint32_t *ids; uint8_t p[VALUE]; };

static struct store_key key_of(uint32_t id)
{
	struct store_key k;
	uint64_t v[2] = { random_bits(1, id), random_bits(2, id) };

	memcpy(k.b, v, sizeof(k.b));
	return k;
}

static struct store *store_at(const char *path, uint64_t capacity, struct store_session **ss)
{
	const struct store_options o = { .capacity = capacity };
	struct ds_err err;
	struct store *s;
	char addr[500];

	snprintf(addr, sizeof(addr), "dir:%s", path);
	if (store_open(&s, addr, &o, &err) || store_begin(ss, s, &err))
		die("%s", err.text);
	return s;
}

static void put_block(struct replayed *r, uint32_t id)
{
	const struct iovec iov = { r->p, VALUE };
	const struct store_put put = { .key = key_of(id), .iov = &iov, .iovs = 1 };
	enum store_put_result how;
	struct ds_err err;

	memcpy(r->p, &id, sizeof(id));
	if (store_put(r->ss, &put, &how, &err))
		die("%s", err.text);
}

static void *place_block(void *ctx, size_t i, const struct store_item *item)
{
	struct replayed *r = ctx;

	(void)i;
	return item->size == VALUE ? r->p : NULL;
}

static bool block_done(void *ctx, size_t i)
{
	const struct replayed *r = ctx;

	if (memcmp(r->p, &r->ids[i], sizeof(*r->ids)) != 0)
		die("the store gave another block");
	return true;
}

/* As prefill does: gets what is there from the front, puts the rest. */
static size_t ask_store(struct replayed *r, const uint32_t *ids, size_t n)
{
	const struct store_sink sink = { r, place_block, block_done };
	struct store_key keys[PROMPT_MOST] = { 0 };
	struct ds_err err;
	size_t got;

	if (n > PROMPT_MOST)
		die("a prompt of %zu blocks", n);
	r->ids = ids;
	for (size_t i = 0; i < n; i++)
		keys[i] = key_of(ids[i]);
	if (store_get(r->ss, keys, n, &sink, &got, &err))
		die("%s", err.text);
	for (size_t i = got; i < n; i++)
		put_block(r, ids[i]);
	return got;
}

static struct store_stat stat_of(struct store_session *ss)
{
	struct store_stat st;
	struct ds_err err;

	if (store_stat(ss, &st, &err))
		die("%s", err.text);
	return st;
}

static uint64_t file_bytes;

static int add_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)path, (void)ftw;
	file_bytes += type == FTW_F ? (uint64_t)st->st_size : 0;
	return 0;
}

/* Bytes of the files for an item. */
static uint64_t item_bytes(void)
{
	struct replayed r = { 0 };
	struct store *s = store_at(in_scratch("probe"), 0, &r.ss);

	for (uint32_t id = 0; id < PROBE; id++)
		put_block(&r, id);
	store_end(r.ss);
	store_close(s);
	nftw(in_scratch("probe"), add_file, 16, FTW_PHYS);
	return file_bytes / PROBE;
}

static void print_store(const struct trace *t, const char *name, uint64_t each)
{
	uint64_t written[SIZES];

	printf("%-32s", name);
	for (int k = 0; k < SIZES; k++) {
		const char *path = in_scratch("store");
		struct replayed r = { 0 };
		struct store *s = store_at(path, each * sizes[k], &r.ss);
		struct store_stat st;
		uint64_t hits = 0;

		for (size_t i = 0; i < t->requests; i++) {
			size_t at = t->first[i];

			hits += whole_hits(t, i, ask_store(&r, t->ids + at, t->first[i + 1] - at));
		}
		st = stat_of(r.ss);
		if (st.bytes > each * sizes[k])
			die("%" PRIu64 " bytes in a store of %" PRIu64, st.bytes, each * sizes[k]);
		written[k] = st.puts + st.moved_bytes / each;
		printf(" %7.2f", 100.0 * (double)(hits * BLOCK) / (double)t->total);
		fflush(stdout);
		store_end(r.ss);
		store_close(s);
		remove_tree(path);
	}
	printf("  |");
	for (int k = 0; k < SIZES; k++)
		printf(" %4" PRIu64, written[k] / 1000);
	putchar('\n');
}

static void print_head(const char *what)
{
	printf("%-32s", what);
	for (int i = 0; i < SIZES; i++)
		printf(" %7zu", sizes[i]);
	printf("  | thousands of blocks written, moved ones too\n");
}

/* As the traces' page has it: prompts' last, partial blocks are kept, and counted for nothing. */
static bool lru_is_right(const char *text, size_t n)
{
	static const double page[SIZES] = { 4.5, 6.7, 21.6, 33.2, 36.1, 37.1 };
	struct trace t;
	bool right = true;

	trace_read(&t, text, n, true);
	printf("%-32s", "LRU, partial blocks kept (page)");
	for (int i = 0; i < SIZES; i++) {
		struct cache c;
		double percent;

		if (!cache_init(&c, POLICY_LRU, sizes[i], t.blocks, 0, 0))
			die("out of memory");
		percent = replay(&t, &c);
		right = right && percent > page[i] - 0.051 && percent < page[i] + 0.051;
		printf(" %7.2f", percent);
		cache_free(&c);
	}
	printf("  %s\n", right ? "as on the page" : "NOT as on the page");
	trace_free(&t);
	return right;
}

int main(void)
{
	const char *shared = getenv("DS_SHARED");
	struct trace t, scanned;
	char path[4096];
	uint64_t each;
	bool right;
	char *text;
	size_t n;

	snprintf(path, sizeof(path), "%s/traces/mooncake-conversation.jsonl.zst", shared ? shared : "../shared");
	text = unpack(path, &n);
	if (!text) {
		printf("SKIP: no trace at '%s' (DS_SHARED)\n", path);
		return 0;
	}
	if (!scratch_begin((uint64_t)sizes[SIZES - 1] * VALUE * 2)) {
		printf("SKIP: no room in '%s'\n", scratch);
		return 0;
	}
	each = item_bytes();
	trace_read(&t, text, n, false);
	trace_scanned(&scanned, &t);
	printf("%zu prompts, %" PRIu64 " tokens, %zu whole blocks of %d; 1 %% of the tokens is %.3f %% of these\n",
		t.requests, t.total, t.n, BLOCK, (double)t.total / BLOCK / (double)t.n);
	print_head("% of input tokens, cache of");
	right = lru_is_right(text, n);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		print_row(&t, &rows[i]);
	print_store(&t, "the store in a directory", each);
	print_head("with a crawler's blocks, 1 to 1");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		print_row(&scanned, &rows[i]);
	print_store(&scanned, "the store in a directory", each);
	trace_free(&t);
	trace_free(&scanned);
	free(text);
	return !right;
}
