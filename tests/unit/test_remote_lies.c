/* The client of ds-kvstore against a peer that answers what it should not, or does not want what it may refuse. */
#include <signal.h>
#include <sys/mman.h>

#include "frame/hello.h"
#include "frame/messages.h"
#include "frame/messages_store.h"
#include "remote.h"

/* ---- a peer that answers what it should not ---- */

enum lie {
	LIE_NONE, LIE_KEY, LIE_SIZE, LIE_HASH, LIE_MANY, LIE_STREAM, LIE_TYPE, LIE_OK, LIE_NO_FD, LIE_NUMBER, LIE_TWICE,
	LIE_RANGE_KEY, LIE_RANGE_HASH, LIE_RANGE_AWAY, LIE_RANGE_HEAD, LIE_ROLE, LIE_ERROR, LIE_END, LIE_GARBAGE,
		LIE_SILENCE,
	LIES,
};

static const struct { const char *name; int rc; size_t got; } lies[LIES] = {
	[LIE_NONE] = { "the truth", 0, 1 },
	[LIE_KEY] = { "another item", DS_PROTO, 0 },
	[LIE_SIZE] = { "a payload of another size", DS_PROTO, 0 },
	[LIE_HASH] = { "a wrong hash", 0, 0 },
	[LIE_MANY] = { "more items than were asked for", DS_PROTO, 1 },
	[LIE_STREAM] = { "the answer of another request", DS_PROTO, 0 },
	[LIE_TYPE] = { "another kind of frame", DS_PROTO, 1 },
	[LIE_OK] = { "an ok without its number", DS_PROTO, 0 },
	[LIE_NO_FD] = { "a file without its descriptor", DS_PROTO, 0 },
	[LIE_NUMBER] = { "a range of a file that was not passed", DS_PROTO, 0 },
	[LIE_TWICE] = { "two files of one number", DS_PROTO, 0 },
	[LIE_RANGE_KEY] = { "a range with another item", DS_PROTO, 0 },
	[LIE_RANGE_HASH] = { "a range with a wrong payload", 0, 0 },
	[LIE_RANGE_AWAY] = { "a range behind the file's end", 0, 0 },
	[LIE_RANGE_HEAD] = { "a range that begins elsewhere", 0, 0 },
	[LIE_ROLE] = { "a hello of no store", DS_PROTO, 0 },
	[LIE_ERROR] = { "an error", DS_TEMP, 0 },
	[LIE_END] = { "the end", DS_UNAVAILABLE, 0 },
	[LIE_GARBAGE] = { "no frames at all", DS_PROTO, 0 },
	[LIE_SILENCE] = { "nothing", DS_TEMP, 0 },
};

/* The item of key 0, of 64 bytes, as its writer would have it; what is wrong with it. */
static int item_bytes(enum lie lie, struct frame_writer *w, uint64_t stream, struct ds_err *err)
{
	struct store_item item = { .key = key_of(lie == LIE_KEY || lie == LIE_RANGE_KEY ? 1 : 0),
		.size = lie == LIE_SIZE ? 200 : 64, .at_ns = 1 };
	bool wrong = lie == LIE_HASH || lie == LIE_RANGE_HASH;
	struct meta_builder *b = meta_new();
	struct iovec iov;
	uint8_t p[64];
	int rc;

	fill(p, sizeof p, 0);
	iov = (struct iovec){ p, sizeof p };
	store_item_put(b, &item);
	meta_put_uint(b, "n", 0);
	if (wrong)
		meta_put_uint(b, "xxh", 77);
	rc = frame_write(w, FRAME_STORE, 0, stream, b, &iov, 1, !wrong, err);
	meta_free(b);
	return rc;
}

static int send_meta(struct frame_writer *w, struct meta_builder *b, unsigned type, uint64_t stream)
{
	struct ds_err err;
	int rc = frame_write(w, type, 0, stream, b, NULL, 0, false, &err);

	meta_reset(b);
	return rc;
}

static void send_range(enum lie lie, struct frame_writer *w, struct meta_builder *b)
{
	struct store_range r = { 0, 0, 0, 64 };
	struct iovec iov = { &r, sizeof r };
	int fd = memfd_create("segment", MFD_CLOEXEC);
	uint8_t head[FRAME_HEAD_BYTES];
	struct frame_writer *file;
	struct ds_err err;

	frame_writer_new(&file, fd, "segment", &err);
	item_bytes(lie, file, 0, &err);
	frame_writer_free(file);
	if (pread(fd, head, sizeof head, 0) != (ssize_t)sizeof head)
		return;
	r.head_bytes = (int64_t)frame_front_bytes(head);
	if (lie == LIE_RANGE_AWAY)
		r.offset = 1 << 20;
	if (lie == LIE_RANGE_HEAD)
		r.offset = 64;
	if (lie == LIE_NUMBER)
		r.segment = 3;
	for (int i = 0; i <= (lie == LIE_TWICE); i++) {
		meta_reset(b);
		store_segment_put(b, 0);
		if (lie == LIE_NO_FD)
			send_meta(w, b, FRAME_STORE, 1);
		else
			frame_write_fd(w, FRAME_STORE, 1, b, fd, &err);
	}
	meta_reset(b);
	store_ranges_put(b, 1);
	frame_write(w, FRAME_STORE, 0, 1, b, &iov, 1, false, &err);
	meta_reset(b);
	close(fd);
}

static void answer_with(enum lie lie, struct frame_writer *w, struct meta_builder *b)
{
	struct error_message m = { .code = DS_TEMP, .text = "busy", .retryable = true };
	struct ds_err err;

	if (lie == LIE_ERROR) {
		error_put(b, &m);
		send_meta(w, b, FRAME_ERROR, 1);
		return;
	}
	if (lie == LIE_END) {
		frame_write_end(w, &err);
		return;
	}
	if (lie >= LIE_NO_FD && lie <= LIE_RANGE_HEAD)
		send_range(lie, w, b);
	else if (lie != LIE_OK)
		item_bytes(lie, w, lie == LIE_STREAM ? 7 : 1, &err);
	if (lie == LIE_MANY)
		item_bytes(lie, w, 1, &err);
	meta_put_cstr(b, "op", "ok");
	if (lie != LIE_OK)
		meta_put_uint(b, "got", 1);
	send_meta(w, b, lie == LIE_TYPE ? FRAME_TEXT : FRAME_STORE, 1);
}

struct liar { enum lie lie; int listen; size_t cut; size_t sent; bool doubted; };

/* Reads what comes until the peer has gone; notes a doubt. */
static void read_rest(struct liar *l, int fd, struct frame_writer *w, struct meta_builder *b)
{
	char buf[4096];
	ssize_t n;
	struct ds_err err;

	while ((n = recv(fd, buf, sizeof buf, 0)) > 0)
		if (memmem(buf, (size_t)n, "doubt", 5)) {
			l->doubted = true;
			meta_put_cstr(b, "op", "ok");
			if (w)
				frame_write(w, FRAME_STORE, 0, 2, b, NULL, 0, false, &err);
		}
}

static void *liar(void *arg)
{
	struct liar *l = arg;
	struct hello h = { .minor = 1, .program = "liar", .role = "store" };
	struct meta_builder *b = meta_new();
	int fd = accept(l->listen, NULL, NULL);
	struct frame_writer *w;
	struct ds_err err;
	char buf[4096];

	if (l->lie == LIE_ROLE)
		snprintf(h.role, sizeof h.role, "decode");
	frame_writer_new(&w, fd, "liar", &err);
	hello_put(b, &h);
	if (l->lie != LIE_GARBAGE && l->lie != LIE_SILENCE)
		send_meta(w, b, FRAME_HELLO, 0);
	meta_reset(b);
	if (recv(fd, buf, sizeof buf, 0) > 0 && l->lie == LIE_GARBAGE && send(fd, buf + 3, 400, MSG_NOSIGNAL) > 0)
		shutdown(fd, SHUT_WR);
	else if (l->lie != LIE_SILENCE && l->lie != LIE_GARBAGE)
		answer_with(l->lie, w, b);
	read_rest(l, fd, w, b);
	frame_writer_free(w);
	meta_free(b);
	close(fd);
	return NULL;
}

static void lie_to(enum lie lie)
{
	struct catch c = { .stop_at = ITEMS, .refuse_at = ITEMS, .meta_right = true };
	const struct store_sink sink = { &c, place, done };
	struct liar l = { .lie = lie };
	struct store_key k = key_of(0);
	struct store_session *ss;
	struct ds_err err = { 0 };
	struct addr a;
	struct store *s;
	pthread_t t;
	char addr[300];
	size_t got;
	int rc;

	snprintf(addr, sizeof addr, "unix:%s/liar", dir);
	if (addr_parse(addr, &a, &err) || addr_listen(&a, false, &l.listen, &err))
		tap_bail("%s", err.text);
	fd_nonblock(l.listen, false);
	pthread_create(&t, NULL, liar, &l);
	s = open_at(addr, &ss);
	store_deadline(ss, time_mono_ns() + (lie == LIE_SILENCE ? 300000000 : 10000000000));
	rc = store_get(ss, &k, 1, &sink, &got, &err);
	store_end(ss);
	store_close(s);
	pthread_join(t, NULL);
	addr_unlisten(&a, l.listen);
	tap_ok(rc == lies[lie].rc && got == lies[lie].got && c.done == got && right(&c, got), "%s: %s", lies[lie].name,
		err.text);
	if (rc != lies[lie].rc || got != lies[lie].got)
		tap_diag("rc %d, got %zu, done %zu", rc, got, c.done);
	if (lie == LIE_HASH || (lie >= LIE_RANGE_HASH && lie <= LIE_RANGE_HEAD))
		tap_ok(l.doubted, "%s: which the peer is told", lies[lie].name);
	catch_free(&c);
}

/* ---- a peer that does not want memory ---- */

struct modest { int listen; unsigned puts, memories; bool right; };

static void be_modest(struct modest *m, struct frame_writer *w, struct meta_builder *b, const struct frame *f)
{
	struct error_message e = { .code = DS_DATA, .text = "an op that is not known" };
	uint8_t *want = malloc(100000);
	enum store_op op;
	struct ds_err err;

	store_op_get(f, &op, &err);
	m->memories += op == STORE_OP_MEMORY;
	if (op == STORE_OP_MEMORY) {
		error_put(b, &e);
		send_meta(w, b, FRAME_ERROR, f->stream);
	} else {
		fill(want, 100000, m->puts);
		m->right = m->right && f->data_len == 100032 && memcmp(f->data, want, 100000) == 0 &&
			!frame_check_payload(f, &err);
		m->puts++;
		meta_put_cstr(b, "op", "ok");
		meta_put_cstr(b, "result", "stored");
		send_meta(w, b, FRAME_STORE, f->stream);
	}
	free(want);
}

static void *modest(void *arg)
{
	struct hello h = { .minor = 1, .program = "modest", .role = "store" };
	struct meta_builder *b = meta_new();
	struct modest *m = arg;
	int fd = accept(m->listen, NULL, NULL);
	enum frame_event ev = FRAME_AGAIN;
	struct frame_writer *w;
	struct frame_reader *r;
	struct frame *f;
	struct ds_err err;

	frame_writer_new(&w, fd, "modest", &err);
	frame_reader_new(&r, fd, "modest", 0, &err);
	hello_put(b, &h);
	send_meta(w, b, FRAME_HELLO, 0);
	while (ev != FRAME_EOF && !frame_reader_next(r, &ev, &f, &err))
		if (ev == FRAME_BODY && f->type == FRAME_STORE)
			be_modest(m, w, b, f);
	frame_reader_free(r);
	frame_writer_free(w);
	meta_free(b);
	close(fd);
	return NULL;
}

static void no_memory_wanted(void)
{
	struct modest m = { .right = true };
	enum store_put_result how;
	struct store_session *ss;
	struct ds_err err;
	struct store *s;
	struct addr a;
	pthread_t t;
	char addr[300];
	int rc = 0;

	snprintf(addr, sizeof addr, "unix:%s/modest", dir);
	if (addr_parse(addr, &a, &err) || addr_listen(&a, false, &m.listen, &err))
		tap_bail("%s", err.text);
	fd_nonblock(m.listen, false);
	pthread_create(&t, NULL, modest, &m);
	s = open_at(addr, &ss);
	for (uint64_t i = 0; i < 3 && !rc; i++)
		rc = put(ss, i, 100000, &how, &err);
	store_end(ss);
	store_close(s);
	pthread_join(t, NULL);
	addr_unlisten(&a, m.listen);
	tap_ok(!rc && how == STORE_STORED && m.puts == 3 && m.memories == 1 && m.right,
		"a peer that takes no memory is asked once, and sent the bytes");
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	if (!mkdtemp(dir))
		tap_bail("no directory");
	for (enum lie lie = 0; lie < LIES; lie++)
		lie_to(lie);
	no_memory_wanted();
	if (rmdir(dir))
		tap_diag("'%s' remains", dir);
	return tap_done();
}
