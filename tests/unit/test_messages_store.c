/* What a client and a KV store say to each other: written, read, and refused. */
#include <stdlib.h>
#include <string.h>

#include "frame/messages_store.h"
#include "frames.h"
#include "tap.h"

static struct meta_builder *b;
static struct frame_writer *w;
static struct frame_parser *parser;
static uint8_t bytes[1 << 20];

/* The frame of b's meta and a payload, as a reader would have it. */
static struct frame *framed(const void *payload, size_t n)
{
	static struct frame f;
	const struct iovec iov = { (void *)(uintptr_t)payload, n };
	struct frame_front front;
	struct ds_err err;

	if (frame_encode(w, FRAME_STORE, 0, 1, 0, b, &iov, 1, false, &front, &err))
		tap_bail("%s", err.text);
	memcpy(bytes, front.p, front.n);
	if (n)
		memcpy(bytes + front.n, payload, n);
	memset(bytes + front.n + n, 0, front.pad);
	if (frame_parse(parser, bytes, front.n + n + front.pad, &f, &err))
		tap_bail("%s", err.text);
	meta_reset(b);
	return &f;
}

static void requests(void)
{
	static uint8_t keys[3 * STORE_MESSAGE_KEY];
	struct store_request q = { .op = STORE_OP_HAS, .n = 3, .each = true }, r;
	struct ds_err err;
	enum store_op op;

	for (size_t i = 0; i < sizeof keys; i++)
		keys[i] = (uint8_t)i;
	store_request_put(b, &q);
	tap_ok(store_request_get(framed(keys, sizeof keys), &r, &err) == 0 && r.op == STORE_OP_HAS && r.n == 3 &&
		r.each && !r.fds && memcmp(r.keys, keys, sizeof keys) == 0, "a request with keys");
	q = (struct store_request){ .op = STORE_OP_GET, .n = 1, .fds = true };
	store_request_put(b, &q);
	tap_ok(store_request_get(framed(keys, 16), &r, &err) == 0 && r.op == STORE_OP_GET && r.fds && !r.each &&
		r.n == 1,
		"a request of descriptors");
	q = (struct store_request){ .op = STORE_OP_STAT };
	store_request_put(b, &q);
	tap_ok(store_request_get(framed(NULL, 0), &r, &err) == 0 && r.op == STORE_OP_STAT && r.n == 0,
		"one without keys");
	q = (struct store_request){ .op = STORE_OP_HAS };
	store_request_put(b, &q);
	tap_ok(store_request_get(framed(NULL, 0), &r, &err) == DS_DATA, "a has without keys is refused: %s", err.text);
	q = (struct store_request){ .op = STORE_OP_DEL, .n = 2 };
	store_request_put(b, &q);
	tap_ok(store_request_get(framed(keys, 32), &r, &err) == DS_DATA, "a del of two is refused: %s", err.text);
	q = (struct store_request){ .op = STORE_OP_HAS, .n = 5 };
	store_request_put(b, &q);
	tap_ok(store_request_get(framed(keys, 32), &r, &err) == DS_DATA, "keys beyond the payload are refused: %s",
		err.text);
	q = (struct store_request){ .op = STORE_OP_HAS, .n = STORE_MESSAGE_KEYS + 1 };
	store_request_put(b, &q);
	{
		uint8_t *many = calloc(STORE_MESSAGE_KEYS + 1, 16);

		tap_ok(store_request_get(framed(many, (STORE_MESSAGE_KEYS + 1) * 16), &r, &err) == DS_DATA,
			"too many keys are refused: %s", err.text);
		free(many);
	}
	meta_put_cstr(b, "op", "brew");
	tap_ok(store_op_get(framed(NULL, 0), &op, &err) == 0 && op == STORE_OP_NONE, "an op that nobody knows is none");
	meta_put_uint(b, "op", 3);
	tap_ok(store_op_get(framed(NULL, 0), &op, &err) == DS_DATA, "one that is no text is refused: %s", err.text);
	meta_put_cstr(b, "op", "has");
	meta_put_cstr(b, "each", "yes");
	tap_ok(store_request_get(framed(NULL, 0), &r, &err) == DS_DATA, "each is true or false: %s", err.text);
}

static void puts_(void)
{
	struct store_put_request q = { .sync = true, .replace = true, .element = 2, .ttl_ns = 5 }, r;
	struct ds_err err;

	store_put_request_put(b, &q);
	tap_ok(store_put_request_get(framed(NULL, 0), &r, &err) == 0 && r.sync && r.replace && r.element == 2 &&
		r.ttl_ns == 5, "what a put says besides its item");
	tap_ok(store_put_request_get(framed(NULL, 0), &r, &err) == 0 && !r.sync && !r.replace && !r.element &&
		!r.ttl_ns,
		"and nothing");
	meta_put_uint(b, "element", 17);
	tap_ok(store_put_request_get(framed(NULL, 0), &r, &err) == DS_DATA, "elements of 17 bytes: %s", err.text);
}

static void answers(void)
{
	const uint8_t here[5] = { 1, 1, 0, 1, 0 };
	struct store_answer a;
	struct ds_err err;

	store_answer_has(b, 2, here, 5);
	tap_ok(store_answer_get(framed(here, 5), STORE_OP_HAS, 5, true, &a, &err) == 0 && a.prefix == 2 && a.n == 5 &&
		memcmp(a.here, here, 5) == 0, "which of five are there");
	store_answer_has(b, 2, here, 5);
	tap_ok(store_answer_get(framed(here, 5), STORE_OP_HAS, 6, true, &a, &err) == DS_DATA, "of six: %s", err.text);
	store_answer_has(b, 6, NULL, 5);
	tap_ok(store_answer_get(framed(NULL, 0), STORE_OP_HAS, 5, false, &a, &err) == DS_DATA,
		"more in a row than were asked for: %s", err.text);
	store_answer_has(b, 2, NULL, 5);
	tap_ok(store_answer_get(framed(NULL, 0), STORE_OP_HAS, 5, true, &a, &err) == DS_DATA,
		"each was asked for and is not there: %s", err.text);
	meta_put_uint(b, "got", 6);
	tap_ok(store_answer_get(framed(NULL, 0), STORE_OP_GET, 5, false, &a, &err) == DS_DATA, "got too many: %s",
		err.text);
	tap_ok(store_answer_get(framed(NULL, 0), STORE_OP_DEL, 1, false, &a, &err) == DS_DATA, "del says nothing: %s",
		err.text);
	tap_ok(store_answer_get(framed(NULL, 0), STORE_OP_PUT, 1, false, &a, &err) == DS_DATA, "put says nothing: %s",
		err.text);
	tap_ok(store_answer_get(framed(NULL, 0), STORE_OP_PIN, 1, false, &a, &err) == 0, "pin has nothing to say");
}

static bool range_refused(struct store_range r)
{
	const struct store_range *v;
	struct ds_err err;
	size_t n;

	store_ranges_put(b, 1);
	return store_ranges_get(framed(&r, sizeof r), &v, &n, &err) == DS_DATA;
}

static void ranges(void)
{
	const struct store_range good[2] = { { 0, 64, 320, 4096 }, { 15, INT64_MAX / 2, 65536, UINT32_MAX } };
	const struct store_range bad[] = { { 16, 64, 320, 64 }, { -1, 64, 320, 64 }, { 0, -64, 320, 64 },
		{ 0, INT64_MAX, 320, 64 }, { 0, 64, 44, 64 }, { 0, 64, 65537, 64 }, { 0, 64, 320, -1 },
		{ 0, 64, 320, (int64_t)UINT32_MAX + 1 } };
	const struct store_range *v;
	long long refused = 0;
	struct ds_err err;
	uint64_t number;
	size_t n;

	store_ranges_put(b, 2);
	tap_ok(store_ranges_get(framed(good, sizeof good), &v, &n, &err) == 0 && n == 2 &&
		memcmp(v, good, sizeof good) == 0,
		"ranges of files");
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		refused += range_refused(bad[i]);
	tap_is_int(refused, sizeof bad / sizeof *bad, "and such as can be no item's are refused");
	store_segment_put(b, 15);
	tap_ok(store_segment_get(framed(NULL, 0), &number, &err) == 0 && number == 15, "a file's number");
	store_segment_put(b, 16);
	tap_ok(store_segment_get(framed(NULL, 0), &number, &err) == DS_DATA, "one too high: %s", err.text);
}

static void built(void)
{
	struct meta_builder *more = meta_new();
	const uint64_t shape[1] = { 0 };
	uint64_t x = 0, y = 0;
	struct frame *f;

	meta_put_uint(more, "y", 8);
	meta_put_tensor(more, "t", DT_U8, "byte", shape, 1, 0, NULL);
	meta_put_uint(b, "x", 7);
	meta_put_built(b, more);
	meta_put_uint(b, "z", 9);
	f = framed(NULL, 0);
	tap_ok(meta_uint(f->meta, "x", &x) == META_OK && x == 7 && meta_uint(f->meta, "y", &y) == META_OK && y == 8 &&
		meta_uint(f->meta, "z", &x) == META_OK && x == 9 && frame_tensor_count(f) == 1,
		"what one builder holds, behind what another does");
	meta_free(more);
}

int main(void)
{
	struct ds_err err;

	b = meta_new();
	if (!b || frame_writer_new(&w, -1, "-", &err) || frame_parser_new(&parser, &err))
		tap_bail("no memory");
	requests();
	puts_();
	answers();
	ranges();
	built();
	meta_free(b);
	frame_writer_free(w);
	frame_parser_free(parser);
	return tap_done();
}
