/*
 * A ds-kvstore that says anything to the client: between a real one and the client stands somebody who changes, drops,
 * doubles and cuts the frames of its answers as the input says, with their checksums made right again or not.
 *
 * Every call ends by its deadline with a result or a reason, and what it gives is what was put.  Descriptors come with
 * the frames, or are left out; the file behind them may be damaged.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/time.h"
#include "frame/internal.h"
#include "store/server.h"
#include "tests/fuzz/mini_store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { EDIT = 5, FRAMES = 128, PENDING = 1 << 17, FDS = 8, CALL_MS = 300, SLACK_MS = 4000 };

struct between {
	const uint8_t *edits; /* [n] of EDIT bytes each */
	size_t n, frame;      /* frame: number of the next, over all connections */
	bool repair, withhold; /* withhold: descriptors */
	int listener, stop;    /* the latter: readable when there will be no more */
	struct store *store;
	struct store_server *sv;
};

/* One connection. */
struct pipe {
	struct between *b;
	int client, server;
	uint8_t pending[PENDING]; /* [have] from the server */
	size_t have;
	int fds[FDS];
	size_t fd_count;
};

static char dir[64], sock_path[80];

/* ---- somebody between ---- */

static void send_on(struct pipe *p, const uint8_t *bytes, size_t n)
{
	char control[CMSG_SPACE(sizeof(int) * FDS)] = { 0 };
	size_t sent = 0;

	while (sent < n && p->client >= 0) {
		struct iovec iov = { (void *)(uintptr_t)(bytes + sent), n - sent };
		struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
		struct cmsghdr *h;
		ssize_t k;

		if (p->fd_count) {
			m.msg_control = control;
			m.msg_controllen = CMSG_SPACE(sizeof(int) * p->fd_count);
			h = CMSG_FIRSTHDR(&m);
			h->cmsg_level = SOL_SOCKET;
			h->cmsg_type = SCM_RIGHTS;
			h->cmsg_len = CMSG_LEN(sizeof(int) * p->fd_count);
			memcpy(CMSG_DATA(h), p->fds, sizeof(int) * p->fd_count);
		}
		k = sendmsg(p->client, &m, MSG_NOSIGNAL);
		while (p->fd_count)
			close(p->fds[--p->fd_count]);
		if (k <= 0)
			shutdown(p->client, SHUT_RDWR);
		if (k <= 0)
			return;
		sent += (size_t)k;
	}
}

/* What the input says of this frame [n], whose memory has room for twice as much; its new length. */
static size_t change(const struct between *b, size_t number, uint8_t *f, size_t n, bool *cut, bool *twice)
{
	bool changed = false;

	for (const uint8_t *e = b->edits; e < b->edits + b->n * EDIT; e += EDIT) {
		size_t at = ((size_t)e[1] << 8 | e[2]) % n;

		if (e[0] != number)
			continue;
		changed = true;
		switch (e[3] % 8) {
		case 0: case 1: f[at] = e[4]; break;
		case 2: f[at] ^= (uint8_t)(1 << e[4] % 8); break;
		case 3: memset(f + at, e[4], n - at < 8 ? n - at : 8); break;
		case 4: *cut = true; return at;
		case 5: return 0;
		case 6: *twice = true; break;
		default: memmove(f + at, f, n - at); break;
		}
	}
	if (changed && b->repair) {
		size_t meta = get_be32(f + 30);

		if (meta <= n - FRAME_HEAD_BYTES)
			put_be32(f + 40, crc32_add(crc32_add(0, f, 39), f + FRAME_HEAD_BYTES, meta));
	}
	return n;
}

/* Whole frames of what the server said. */
static void send_frames(struct pipe *p)
{
	size_t at = 0;

	while (p->have - at >= FRAME_HEAD_BYTES && p->client >= 0) {
		size_t meta = get_be32(p->pending + at + 30), data = get_be32(p->pending + at + 35);
		size_t n = FRAME_HEAD_BYTES + meta + FRAME_BIN_BYTES + data, left;
		bool cut = false, twice = false;

		must(n < PENDING);
		if (p->have - at < n)
			break;
		left = change(p->b, p->b->frame++, p->pending + at, n, &cut, &twice);
		send_on(p, p->pending + at, left);
		if (twice)
			send_on(p, p->pending + at, left);
		if (cut)
			shutdown(p->client, SHUT_RDWR);
		at += n;
	}
	memmove(p->pending, p->pending + at, p->have - at);
	p->have -= at;
}

/* False: the server has ended. */
static bool from_server(struct pipe *p)
{
	char control[CMSG_SPACE(sizeof(int) * FDS)];
	struct iovec iov = { p->pending + p->have, PENDING - p->have };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
		.msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(p->server, &m, MSG_CMSG_CLOEXEC);

	for (struct cmsghdr *h = n > 0 ? CMSG_FIRSTHDR(&m) : NULL; h; h = CMSG_NXTHDR(&m, h))
		for (size_t i = 0; h->cmsg_type == SCM_RIGHTS && CMSG_LEN(sizeof(int) * (i + 1)) <= h->cmsg_len; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
			if (p->b->withhold || p->fd_count == FDS)
				close(fd);
			else
				p->fds[p->fd_count++] = fd;
		}
	if (n <= 0)
		return false;
	p->have += (size_t)n;
	send_frames(p);
	return true;
}

static bool from_client(struct pipe *p)
{
	uint8_t buf[4096];
	ssize_t n = recv(p->client, buf, sizeof(buf), 0), sent = 0;

	while (n > sent) {
		ssize_t k = send(p->server, buf + sent, (size_t)(n - sent), MSG_NOSIGNAL);

		if (k <= 0)
			return false;
		sent += k;
	}
	return n > 0;
}

struct serving { struct store_server *sv; int fd; };

static void *serve(void *arg)
{
	const struct serving *s = arg;
	struct ds_err err;

	store_serve(s->sv, s->fd, s->fd, "fuzz", NULL, &err);
	close(s->fd);
	return NULL;
}

static void relay(struct between *b, int client)
{
	static struct pipe p;
	bool more = true;
	struct serving s = { b->sv, -1 };
	pthread_t t;
	int fd[2];

	must(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd));
	p = (struct pipe){ .b = b, .client = client, .server = fd[0] };
	s.fd = fd[1];
	must(!pthread_create(&t, NULL, serve, &s));
	while (more) {
		struct pollfd w[2] = { { .fd = client, .events = POLLIN }, { .fd = p.server, .events = POLLIN } };

		must(poll(w, 2, 20000) > 0);
		if (w[1].revents)
			more = from_server(&p);
		if (w[0].revents && more)
			more = from_client(&p);
	}
	shutdown(client, SHUT_RDWR);
	shutdown(p.server, SHUT_RDWR);
	pthread_join(t, NULL);
	while (p.fd_count)
		close(p.fds[--p.fd_count]);
	close(p.server);
	close(client);
}

static void *stand_between(void *arg)
{
	struct between *b = arg;

	for (;;) {
		struct pollfd w[2] = { { .fd = b->listener, .events = POLLIN }, { .fd = b->stop, .events = POLLIN } };
		int fd;

		must(poll(w, 2, -1) > 0);
		fd = w[0].revents ? accept4(b->listener, NULL, NULL, SOCK_CLOEXEC) : -1;
		if (fd >= 0)
			relay(b, fd);
		else if (w[1].revents)
			return NULL;
	}
}

/* ---- the client ---- */

struct got { bool forged; size_t first; uint8_t p[MINI_ROOM]; size_t n, done; };

static void *place(void *ctx, size_t i, const struct store_item *item)
{
	struct got *g = ctx;

	must(i == g->done);
	must(g->forged || item->size <= sizeof(g->p));
	g->n = item->size;
	return item->size <= sizeof(g->p) ? g->p : NULL;
}

static bool done(void *ctx, size_t i)
{
	struct got *g = ctx;

	must(i == g->done++);
	must(g->forged || mini_right(g->first + i, g->p, g->n));
	return true;
}

static int64_t call_began;

static void begin_call(struct store_session *ss)
{
	call_began = time_mono_ns();
	store_deadline(ss, call_began + (int64_t)CALL_MS * 1000000);
}

static void end_call(int rc, const struct ds_err *err)
{
	must(rc == 0 || (rc == err->code && err->text[0]));
	must(time_mono_ns() - call_began < (int64_t)(CALL_MS + SLACK_MS) * 1000000);
}

static void get(struct store_session *ss, size_t first, size_t n, bool forged)
{
	static struct got g;
	const struct store_sink sink = { &g, place, done };
	struct store_key keys[MINI_ITEMS];
	struct ds_err err;
	size_t got;
	int rc;

	g.forged = forged;
	g.first = first;
	g.done = 0;
	for (size_t i = 0; i < n; i++)
		keys[i] = mini_key(first + i);
	begin_call(ss);
	rc = store_get(ss, keys, n, &sink, &got, &err);
	end_call(rc, &err);
	must(got == g.done && got <= n);
}

static void has_and_put(struct store_session *ss)
{
	const struct iovec iov = { (void *)(uintptr_t)"something", 9 };
	const struct store_put put = { .key = mini_key(MINI_ITEMS), .iov = &iov, .iovs = 1 };
	struct store_key keys[MINI_ITEMS + 2];
	uint8_t here[MINI_ITEMS + 2];
	enum store_put_result how;
	struct ds_err err;
	size_t prefix;
	int rc;

	for (size_t i = 0; i < MINI_ITEMS + 2; i++)
		keys[i] = mini_key(i);
	begin_call(ss);
	rc = store_has(ss, keys, MINI_ITEMS + 2, here, &prefix, &err);
	end_call(rc, &err);
	must(rc || prefix <= MINI_ITEMS + 2);
	begin_call(ss);
	rc = store_put(ss, &put, &how, &err);
	end_call(rc, &err);
	must(rc || how <= STORE_NOT_ADMITTED);
}

static void rest(struct store_session *ss)
{
	struct store_key key = mini_key(MINI_ITEMS);
	struct store_stat st;
	struct ds_err err;
	bool was;
	int rc;

	begin_call(ss);
	rc = store_stat(ss, &st, &err);
	end_call(rc, &err);
	begin_call(ss);
	rc = store_del(ss, &key, &was, &err);
	end_call(rc, &err);
	begin_call(ss);
	rc = store_pin(ss, &key, 1, true, &err);
	end_call(rc, &err);
}

static void use(bool fds, bool forged)
{
	const struct store_options o = { .max_frame = 1 << 20 };
	struct store_session *ss;
	struct ds_err err;
	struct store *s;
	char addr[120];

	snprintf(addr, sizeof(addr), "unix:%s%s", sock_path, fds ? "" : "?bytes");
	must(store_open(&s, addr, &o, &err) == 0);
	must(store_begin(&ss, s, &err) == 0);
	has_and_put(ss);
	get(ss, 0, MINI_ITEMS, forged);
	get(ss, 2, 3, forged);
	rest(ss);
	store_end(ss);
	store_close(s);
}

/* ---- one input ---- */

/* Edits of frames that there are not are of the file instead. */
static void damage(const struct between *b)
{
	const struct mini *m = (const struct mini *)b->store;

	for (const uint8_t *e = b->edits; e < b->edits + b->n * EDIT; e += EDIT) {
		off_t at = e[0] % MINI_ITEMS * MINI_ROOM + ((off_t)e[1] << 8 | e[2]) % MINI_ROOM;
		uint8_t byte;

		if (e[0] < FRAMES || pread(m->fd, &byte, 1, at) != 1)
			continue;
		byte ^= (uint8_t)(1 << e[4] % 8);
		must(pwrite(m->fd, &byte, 1, at) == 1);
	}
}

static void remove_dir(void)
{
	unlink(sock_path);
	rmdir(dir);
}

static int listen_at(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strcpy(dir, "/tmp/fuzz-store-XXXXXX");
	must(mkdtemp(dir) != NULL);
	atexit(remove_dir);
	snprintf(sock_path, sizeof(sock_path), "%s/sock", dir);
	strcpy(a.sun_path, sock_path);
	must(!bind(fd, (struct sockaddr *)&a, sizeof(a)) && !listen(fd, 10) && !fcntl(fd, F_SETFL, O_NONBLOCK));
	return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct store_server_options o = { .program = "fuzz", .max_frame = 1 << 20, .memory = 1 << 22,
		.peer_ns = (int64_t)5000000000 };
	static int listener = -1;
	uint8_t how = size ? data[0] : 0;
	struct between b = { .edits = data + 1, .n = size ? (size - 1) / EDIT : 0, .repair = how & 1,
		.withhold = how & 2, .store = mini_open(how & 4) };
	struct ds_err err;
	pthread_t t;
	int stop[2];

	if (listener < 0)
		listener = listen_at();
	b.listener = listener;
	damage(&b);
	must(!pipe(stop));
	b.stop = stop[0];
	must(store_server_new(&b.sv, b.store, &o, &err) == 0);
	must(!pthread_create(&t, NULL, stand_between, &b));
	use(how & 8, how & 1);
	close(stop[1]);
	pthread_join(t, NULL);
	close(stop[0]);
	store_server_free(b.sv);
	mini_close(b.store);
	return 0;
}
