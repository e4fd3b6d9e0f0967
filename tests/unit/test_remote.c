/*
 * The client of ds-kvstore against the server on a directory: by descriptor, as bytes, over TCP, through another; and
 * against a peer that is late, or absent.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>

#include "remote.h"
#include "store/server.h"

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

/* ---- against the server ---- */

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

/* The fault: what a file said of a compressed item was allotted, whatever it was. */
static void too_large(void)
{
	enum { SIZE = 2 << 20 };
	const uint64_t limits[] = { 0, SIZE / 2 };
	const struct store_options zstd = { .zstd = true };
	struct store_key k = { "compressed" };
	struct iovec iov = { calloc(SIZE, 1), SIZE };
	struct store_put p = { .key = k, .iov = &iov, .iovs = 1, .element = 2 };
	char path[300], addr[300];
	enum store_put_result how;
	struct store_session *ss;
	struct store *store;
	struct service s;
	struct ds_err err;
	size_t got;

	snprintf(path, sizeof path, "dir:%s/coded", dir);
	snprintf(addr, sizeof addr, "unix:%s/coded.sock", dir);
	if (store_open(&store, path, &zstd, &err) || store_begin(&ss, store, &err) || store_put(ss, &p, &how, &err))
		tap_bail("%s", err.text);
	store_end(ss);
	store_close(store);
	begin_service(&s, addr, path);
	for (int i = 0; i < 2; i++) {
		const struct store_options o = { .max_frame = limits[i] };
		struct catch c = { .stop_at = ITEMS, .refuse_at = ITEMS };
		const struct store_sink sink = { &c, place, done };

		if (store_open(&store, addr, &o, &err) || store_begin(&ss, store, &err))
			tap_bail("%s", err.text);
		tap_ok(!store_get(ss, &k, 1, &sink, &got, &err) && got == !i, i ? "one over the limit is a miss" :
			"a compressed item is read from its file");
		store_end(ss);
		store_close(store);
		catch_free(&c);
	}
	end_service(&s);
	free(iov.iov_base);
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
	too_large();
	snprintf(command, sizeof command, "rm -r '%s'", dir);
	if (system(command))
		tap_diag("'%s' remains", dir);
	return tap_done();
}
