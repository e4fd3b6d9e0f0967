/*
 * What strangers say at a unit's address: messages of every type with right sizes and names at first, then changed by
 * the input, in pieces; what is taken for a message of ranks must be one.  Then the input as it is.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ep/meet.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORLD = 5, EDIT = 4 };

struct input { const uint8_t *p; size_t left; };

static uint8_t take(struct input *in)
{
	if (!in->left)
		return 0;
	in->left--;
	return *in->p++;
}

static struct meet_hello hello_of(uint32_t rank)
{
	struct meet_hello h = { .self = { .incarnation = rank + 7, .rank = rank, .addr = "tcp:127.0.0.1:9" },
		.world = WORLD, .terms = 2 };

	strcpy(h.term[0].name, "model");
	strcpy(h.term[0].value, "of this kind");
	strcpy(h.term[1].name, "version");
	strcpy(h.term[1].value, "1");
	return h;
}

/* A message with its head, right in all; how long it is. */
static size_t message(uint8_t *out, enum meet_type type, size_t ranks, bool behind)
{
	struct meet_hello h = hello_of(1);
	struct meet_refusal r = { .code = 64, .text = "no" };
	struct meet_io io = { .fd = -1 };
	struct meet_table *t = calloc(1, meet_table_bytes(WORLD));
	size_t n = meet_table_bytes(ranks), len;

	if (!t)
		abort();
	*t = (struct meet_table){ .nonce = 3, .epoch = 2, .world = WORLD, .count = (uint32_t)ranks, .holder = WORLD };
	for (size_t i = 0; i < ranks; i++)
		t->entry[i] = hello_of((uint32_t)i).self;
	/* to nobody: it stays in the buffer */
	if (type == MEET_HELLO)
		meet_write(&io, type, &h, sizeof(h), behind ? t : NULL, n);
	else if (type == MEET_TABLE)
		meet_write(&io, type, t, n, NULL, 0);
	else if (type == MEET_REFUSAL)
		meet_write(&io, type, &r, sizeof(r), NULL, 0);
	else
		meet_write(&io, type, NULL, 0, NULL, 0);
	len = io.out.len;
	memcpy(out, io.out.p, len);
	meet_io_free(&io);
	free(t);
	return len;
}

static void must(bool holds)
{
	if (!holds)
		abort();
}

static void check_entry(const struct meet_entry *e, size_t world)
{
	must(e->rank < world && strnlen(e->addr, sizeof(e->addr)) < sizeof(e->addr));
}

static void check_table(const struct meet_table *t, size_t n, size_t world)
{
	must(n == meet_table_bytes(t->count) && t->count && t->count <= world);
	for (size_t i = 0; i < t->count; i++)
		check_entry(&t->entry[i], world);
}

static void check_hello(const struct meet_hello *h, const struct meet_table *t, size_t n)
{
	struct meet_hello own = hello_of(0);
	struct ds_err err = { 0 };
	int rc = meet_agree("tcp:127.0.0.1:1", &own, h, &err);

	must(h->world <= EP_MAX_WORLD && h->terms <= MEET_TERMS);
	must(rc ? rc == err.code && err.text[0] : h->world == WORLD && h->terms >= own.terms);
	check_entry(&h->self, h->world);
	if (t)
		check_table(t, n - sizeof(*h), h->world);
}

static void check(enum meet_type type, const void *data, size_t n)
{
	const struct meet_table *t;

	if (type == MEET_HELLO && meet_hello_ok(data, n, &t))
		check_hello(data, t, n);
	if (type == MEET_TABLE && meet_table_ok(data, n, WORLD))
		check_table(data, n, WORLD);
	if (type == MEET_REFUSAL && meet_refusal_ok(data, n))
		must(strnlen(((const struct meet_refusal *)data)->text, 1000) < 1000);
	if (n >= sizeof(struct meet_intro) && meet_intro_ok(data, WORLD))
		check_entry(&((const struct meet_intro *)data)->from, WORLD);
}

/* Sends the bytes in pieces and takes messages between them; how many there were. */
static size_t converse(const uint8_t *p, size_t n, size_t piece)
{
	struct meet_io io = { .fd = -1 };
	enum meet_type type;
	const void *data;
	size_t count = 0, got;
	int fd[2], rc = 0;

	must(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd));
	io.fd = fd[0];
	while (n && rc >= 0) {
		ssize_t sent = write(fd[1], p, piece && piece < n ? piece : n);

		if (sent > 0) {
			p += sent;
			n -= (size_t)sent;
		}
		while ((rc = meet_read(&io, &type, &data, &got)) == 1) {
			check(type, data, got);
			count++;
		}
	}
	close(fd[1]);
	while (rc >= 0 && (rc = meet_read(&io, &type, &data, &got)) == 1)
		count++;
	must(rc == -1); /* it has ended */
	meet_io_free(&io);
	return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t bytes[3 << 16];
	struct input in = { data, size };
	uint8_t first = take(&in);
	enum meet_type type = (enum meet_type)(MEET_HELLO + first % 5);
	size_t len = message(bytes, type, 1 + first / 5 % WORLD, first & 128), piece = take(&in);

	must(converse(bytes, len, piece) == 1); /* not yet changed */
	while (in.left >= EDIT) {
		size_t at = (size_t)take(&in) << 8 | take(&in), value = take(&in);

		if (take(&in) % 2 && at < len)
			bytes[at] ^= (uint8_t)value;
		else
			bytes[at % 80] = (uint8_t)value; /* the head, and what counts are in */
	}
	converse(bytes, len, piece ? piece * 64 : 0);
	if (size)
		converse(data, size, piece);
	return 0;
}
