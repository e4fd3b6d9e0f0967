/*
 * The client of ds-kvstore: against the server on a directory, by descriptor, as bytes, over TCP; against a peer
 * that is slow, absent, or answers what it should not.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "base/xxh3.h"
#include "frame/messages.h"
#include "net/addr.h"
#include "store/server.h"
#include "store/store_impl.h"
#include "tap.h"

enum { ITEMS = 8, BIG = 4497408 };
static const size_t sizes[ITEMS] = { 64, 0, 1, 63, 65, 100000, 1 << 20, BIG };
static char dir[] = "/tmp/test_remote.XXXXXX";

/* ---- what is put and comes back ---- */

static struct store_key key_of(uint64_t i)
{
	struct store_key k = { { 0 } };

	i++;
	memcpy(k.b, &i, sizeof i);
	k.b[15] = (uint8_t)(i * 37);
	return k;
}

static void fill(uint8_t *p, size_t n, uint64_t i)
{
	for (size_t k = 0; k < n; k++)
		p[k] = (uint8_t)(k * 31 + (k >> 8) * 7 + i * 101);
}

struct catch {
	uint8_t *p[ITEMS];
	size_t placed, done, stop_at, refuse_at;
	bool meta_right;
};

static void *place(void *ctx, size_t i, const struct store_item *item)
{
	struct catch *c = ctx;
	uint64_t n = 0;

	c->placed++;
	c->meta_right = c->meta_right && meta_uint(item->meta, "n", &n) == META_OK && n == i;
	if (i == c->refuse_at)
		return NULL;
	free(c->p[i]);
	c->p[i] = malloc(item->size + 64);
	memset(c->p[i], 0xee, item->size + 64);
	return c->p[i];
}

static bool done(void *ctx, size_t i)
{
	struct catch *c = ctx;

	c->done++;
	return i != c->stop_at;
}

static void catch_free(struct catch *c)
{
	for (size_t i = 0; i < ITEMS; i++)
		free(c->p[i]);
}

/* The first n items are what was put, and nothing was written behind them. */
static bool right(const struct catch *c, size_t n)
{
	uint8_t *want = malloc(BIG + 64);
	bool good = c->meta_right;

	for (size_t i = 0; i < n; i++) {
		fill(want, sizes[i], i);
		memset(want + sizes[i], 0xee, 64);
		good = good && c->p[i] && memcmp(want, c->p[i], sizes[i] + 64) == 0;
	}
	free(want);
	return good;
}

/* ---- a server ---- */

struct service {
	struct store *store;
	struct store_server *sv;
	struct addr addr;
	char text[400];
	int listen;
	pthread_t door, client[64];
	int fds[64];
	_Atomic size_t clients;
};

struct visit { struct service *s; int fd; };

static void *serve_one(void *arg)
{
	struct visit v = *(struct visit *)arg;
	struct ds_err err;

	free(arg);
	store_serve(v.s->sv, v.fd, v.fd, "a client", NULL, &err);
	shutdown(v.fd, SHUT_RDWR);
	return NULL;
}

static void *door(void *arg)
{
	struct service *s = arg;

	for (;;) {
		int fd = accept(s->listen, NULL, NULL);
		struct visit *v;

		if (fd < 0)
			return NULL;
		v = malloc(sizeof *v);
		*v = (struct visit){ s, fd };
		s->fds[s->clients] = fd;
		pthread_create(&s->client[s->clients++], NULL, serve_one, v);
	}
}

static void open_door(struct service *s, const char *addr)
{
	struct ds_err err;
	char at[300];

	if (addr_parse(addr, &s->addr, &err) || addr_listen(&s->addr, false, &s->listen, &err))
		tap_bail("%s", err.text);
	fd_nonblock(s->listen, false);
	addr_local(s->listen, at, sizeof at);
	snprintf(s->text, sizeof s->text, "%s", at[0] ? at : addr);
	pthread_create(&s->door, NULL, door, s);
}

static void begin_service(struct service *s, const char *addr, const char *store)
{
	const struct store_server_options o = { .program = "test", .peer_ns = 5000000000 };
	const struct store_options so = { .capacity = 256 << 20 };
	struct ds_err err;

	memset(s, 0, sizeof *s);
	if (store_open(&s->store, store, &so, &err) || store_server_new(&s->sv, s->store, &o, &err))
		tap_bail("%s", err.text);
	open_door(s, addr);
}

static void end_service(struct service *s)
{
	shutdown(s->listen, SHUT_RDWR);
	pthread_join(s->door, NULL);
	store_server_drain(s->sv);
	for (size_t i = 0; i < s->clients; i++) {
		pthread_join(s->client[i], NULL);
		close(s->fds[i]);
	}
	addr_unlisten(&s->addr, s->listen);
	store_server_free(s->sv);
	store_close(s->store);
}

static struct store *open_at(const char *addr, struct store_session **ss)
{
	const struct store_options o = { 0 };
	struct store *s;
	struct ds_err err;

	if (store_open(&s, addr, &o, &err) || store_begin(ss, s, &err))
		tap_bail("%s", err.text);
	return s;
}

/* ---- against the server ---- */

static int put(struct store_session *ss, uint64_t i, size_t size, enum store_put_result *how, struct ds_err *err)
{
	struct meta_builder *b = meta_new();
	uint8_t *p = malloc(size + 1);
	struct iovec iov[2] = { { p, size / 3 }, { p + size / 3, size - size / 3 } };
	struct store_put q = { .key = key_of(i), .meta = b, .iov = iov, .iovs = 2 };
	int rc;

	meta_put_uint(b, "n", i);
	fill(p, size, i);
	rc = store_put(ss, &q, how, err);
	free(p);
	meta_free(b);
	return rc;
}

static void round_trip(const char *addr, bool first)
{
	struct store_key keys[ITEMS + 2];
	struct catch c = { .stop_at = ITEMS, .refuse_at = ITEMS, .meta_right = true };
	const struct store_sink sink = { &c, place, done };
	enum store_put_result how;
	struct store_session *ss;
	struct store *s = open_at(addr, &ss);
	uint8_t here[ITEMS + 2];
	size_t prefix, got;
	struct store_stat st;
	struct ds_err err = { 0 };
	bool was, good = true;
	int rc;

	for (size_t i = 0; i < ITEMS + 2; i++)
		keys[i] = key_of(i);
	for (size_t i = 0; i < ITEMS; i++)
		good = !put(ss, i, sizes[i], &how, &err) && how == (first ? STORE_STORED : STORE_ALREADY) && good;
	tap_ok(good, "%s: items of all sizes are put %s", addr, err.text);
	keys[3] = key_of(99);
	rc = store_has(ss, keys, ITEMS + 2, here, &prefix, &err);
	tap_ok(!rc && prefix == 3 && here[2] && !here[3] && here[4] && !here[ITEMS], "%s: has", addr);
	rc = store_get(ss, keys, ITEMS, &sink, &got, &err);
	tap_ok(!rc && got == 3 && right(&c, 3), "%s: a get ends before what is missing", addr);
	keys[3] = key_of(3);
	rc = store_get(ss, keys, ITEMS + 2, &sink, &got, &err);
	tap_ok(!rc && got == ITEMS && right(&c, ITEMS), "%s: all of them come back", addr);
	c.stop_at = 2;
	rc = store_get(ss, keys, ITEMS, &sink, &got, &err);
	tap_ok(!rc && got == 3, "%s: a get ends where no more is wanted", addr);
	c.stop_at = ITEMS;
	c.refuse_at = 5;
	rc = store_get(ss, keys, ITEMS, &sink, &got, &err);
	tap_ok(!rc && got == 5, "%s: and before what has no place", addr);
	tap_ok(!store_pin(ss, keys, ITEMS, true, &err) && !store_stat(ss, &st, &err) && st.items == ITEMS &&
		!store_pin(ss, keys, ITEMS, false, &err), "%s: pin, unpin, stat", addr);
	put(ss, 500, 64, &how, &err);
	keys[0] = key_of(500);
	tap_ok(!store_del(ss, keys, &was, &err) && was && !store_del(ss, keys, &was, &err) && !was, "%s: del", addr);
	catch_free(&c);
	store_end(ss);
	store_close(s);
}

static void deadlines(const char *addr)
{
	struct store_session *ss;
	struct store *s = open_at(addr, &ss);
	struct store_key k = key_of(0);
	struct ds_err err;
	size_t prefix;
	int rc;

	store_deadline(ss, time_mono_ns() - 1);
	rc = store_has(ss, &k, 1, NULL, &prefix, &err);
	tap_ok(rc == DS_TEMP, "a deadline that is over: %s", err.text);
	store_deadline(ss, time_mono_ns() + 5000000000);
	tap_ok(!store_has(ss, &k, 1, NULL, &prefix, &err) && prefix == 1, "and one that is not");
	store_end(ss);
	store_close(s);
}

/* Served by memory, not by files: as a store of another kind is. */
static void passed_on(const char *addr)
{
	char front[300];
	struct service s;

	snprintf(front, sizeof front, "unix:%s/front", dir);
	begin_service(&s, front, addr);
	round_trip(front, false);
	end_service(&s);
}

/* ---- a peer that goes away ---- */

static void absent(void)
{
	char addr[300];
	struct store_session *ss, *second;
	struct store_key k = key_of(0);
	struct service s;
	struct store *store;
	struct ds_err err;
	int64_t began;
	size_t prefix;
	int rc;

	snprintf(addr, sizeof addr, "unix:%s/absent", dir);
	store = open_at(addr, &ss);
	store_begin(&second, store, &err);
	began = time_mono_ns();
	rc = store_has(ss, &k, 1, NULL, &prefix, &err);
	tap_ok(rc == DS_UNAVAILABLE, "nobody is there: %s", err.text);
	close(open(addr + strlen("unix:"), O_WRONLY | O_CREAT, 0600)); /* another reason, if it were tried again */
	rc = store_has(second, &k, 1, NULL, &prefix, &err);
	tap_ok(rc == DS_UNAVAILABLE && strstr(err.text, "No such file"), "it is not tried again at once: %s", err.text);
	unlink(addr + strlen("unix:"));
	for (int i = 0; i < 1000; i++)
		rc = store_has(i % 2 ? ss : second, &k, 1, NULL, &prefix, &err);
	tap_ok(rc == DS_UNAVAILABLE && time_mono_ns() - began < 500000000, "which costs nothing a thousand times");
	for (int turn = 0; turn < 2; turn++) {
		char path[300];

		snprintf(path, sizeof path, "dir:%s/store", dir);
		begin_service(&s, addr, path);
		poll(NULL, 0, 2100); /* the longest pause */
		tap_ok(!store_has(ss, &k, 1, NULL, &prefix, &err) && prefix == 1, "then it is there, turn %d", turn);
		end_service(&s);
		begin_service(&s, addr, path);
		tap_ok(!store_has(ss, &k, 1, NULL, &prefix, &err) && prefix == 1, "and there, started anew");
		end_service(&s);
		rc = store_has(ss, &k, 1, NULL, &prefix, &err);
		tap_ok(rc == DS_UNAVAILABLE, "and gone: %s", err.text);
	}
	store_end(ss);
	store_end(second);
	store_close(store);
}

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

int main(void)
{
	char addr[300], bytes[310], path[300], command[300];
	struct service s;

	signal(SIGPIPE, SIG_IGN);
	if (!mkdtemp(dir))
		tap_bail("no directory");
	snprintf(addr, sizeof addr, "unix:%s/sock", dir);
	snprintf(bytes, sizeof bytes, "%s?bytes", addr);
	snprintf(path, sizeof path, "dir:%s/store", dir);
	begin_service(&s, addr, path);
	round_trip(addr, true);
	round_trip(bytes, false);
	passed_on(addr);
	deadlines(addr);
	end_service(&s);
	begin_service(&s, "tcp:127.0.0.1:0", path);
	round_trip(s.text, false);
	end_service(&s);
	absent();
	for (enum lie lie = 0; lie < LIES; lie++)
		lie_to(lie);
	snprintf(command, sizeof command, "rm -r '%s'", dir);
	if (system(command))
		tap_diag("'%s' remains", dir);
	return tap_done();
}
