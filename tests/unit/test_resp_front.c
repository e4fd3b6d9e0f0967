/* The Redis front over a store in memory, served in either way, and over a directory. */
#include "base/time.h"
#include "store/resp_impl.h"
#include "tests/unit/feed.h"
#include "tests/unit/store_mem.h"

static struct mem_store *mem;
static struct resp_front *front;

struct server { int fd, rc; };

static void *serve(void *arg)
{
	struct server *s = arg;
	struct ds_err err;

	s->rc = resp_serve(front, s->fd, "client", &err);
	shutdown(s->fd, SHUT_RDWR);
	return NULL;
}

/* What the front answers to these bytes, to its end; *rc: how it ended. */
static size_t talk(const char *p, size_t n, size_t piece, char *answer, size_t cap, int *rc)
{
	struct server s;
	struct feed in, out = { .p = answer, .n = cap };
	pthread_t t[3];
	int fd[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd))
		tap_bail("no socket");
	s = (struct server){ fd[0], -1 };
	in = (struct feed){ fd[1], p, n, piece };
	out.fd = fd[1];
	pthread_create(&t[0], NULL, serve, &s);
	pthread_create(&t[1], NULL, drain, &out);
	pthread_create(&t[2], NULL, feed, &in);
	for (size_t i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	close(fd[0]);
	close(fd[1]);
	*rc = s.rc;
	return out.piece;
}

static void says_n(const char *what, const char *p, size_t n, const char *want, size_t want_n)
{
	static char got[1 << 20];
	int rc;
	size_t len = talk(p, n, n, got, sizeof got - 1, &rc);

	got[len] = 0;
	tap_ok(len == want_n && !memcmp(got, want, len), "%s", what);
	if (len != want_n || memcmp(got, want, len))
		tap_diag("got %zu bytes '%.300s'", len, got);
}

#define says(what, p, want) says_n(what, S(p), S(want))

static void test_values(void)
{
	says("nothing is there", "GET a\r\nEXISTS a a\r\nSTRLEN a\r\nTTL a\r\nDEL a\r\nTYPE a\r\n",
		"$-1\r\n:0\r\n:0\r\n:-2\r\n:0\r\n+none\r\n");
	says("a value is set and got", "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$3\r\n1\r2\r\n*2\r\n$3\r\ngEt\r\n$1\r\na\r\n",
		"+OK\r\n$3\r\n1\r2\r\n");
	says("what it is", "EXISTS a b a\r\nSTRLEN a\r\nTTL a\r\nPTTL a\r\nTYPE a\r\n",
		":2\r\n:3\r\n:-1\r\n:-1\r\n+string\r\n");
	says("it is replaced", "SET a longer\r\nGET a\r\nSTRLEN a\r\n", "+OK\r\n$6\r\nlonger\r\n:6\r\n");
	says("if it is not there", "SET a x NX\r\nSETNX a y\r\nSETNX b 1\r\nSET c 2 NX\r\nMGET a b c d\r\n",
		"$-1\r\n:0\r\n:1\r\n+OK\r\n*4\r\n$6\r\nlonger\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n");
	says("if it is there", "SET d x XX\r\nSET a y XX\r\nMGET a d\r\n", "$-1\r\n+OK\r\n*2\r\n$1\r\ny\r\n$-1\r\n");
	says("what was there", "SET a z GET\r\nSET e z GET\r\nSET a w NX GET\r\nGET a\r\n",
		"$1\r\ny\r\n$-1\r\n$1\r\nz\r\n$1\r\nz\r\n");
	says("several", "MSET k1 v1 k2 v2 k1 v3\r\nMGET k1 k2\r\nMSET a\r\nMSET a b c\r\n",
		"+OK\r\n*2\r\n$2\r\nv3\r\n$2\r\nv2\r\n-ERR wrong number of arguments for 'mset'\r\n"
		"-ERR wrong number of arguments for 'mset'\r\n");
	says("several, as Redis's clients send them",
		"*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$0\r\n\r\n*3\r\n$4\r\nMGET\r\n$1\r\nb\r\n$1\r\n"
		"a\r\n",
		"+OK\r\n*2\r\n$0\r\n\r\n$1\r\n1\r\n");
	says("gone", "DEL a b zz\r\nUNLINK c\r\nGET a\r\n", ":2\r\n:1\r\n$-1\r\n");
	says("an empty name", "SET '' x\r\nGET \"\"\r\n", "+OK\r\n$1\r\nx\r\n");
}

static void test_times(void)
{
	says("a time that is over", "SET t x PX 1\r\n", "+OK\r\n");
	usleep(20000);
	says("is over", "GET t\r\nTTL t\r\n", "$-1\r\n:-2\r\n");
	says("a long one", "SET t x EX 100\r\nTTL t\r\nSETEX u 50 y\r\nTTL u\r\nPSETEX v 70000 z\r\nTTL v\r\n",
		"+OK\r\n:100\r\n+OK\r\n:50\r\n+OK\r\n:70\r\n");
	says("kept", "SET t y KEEPTTL\r\nTTL t\r\nSET t z\r\nTTL t\r\n", "+OK\r\n:100\r\n+OK\r\n:-1\r\n");
	says("a date that is past", "SET t y EXAT 5\r\nGET t\r\n", "+OK\r\n$-1\r\n");
	says("a date to come", "SET t y EXAT 32503680000\r\nGET t\r\n", "+OK\r\n$1\r\ny\r\n");
	says("longer than nanoseconds count", "SET t y EX 9223372036854775807\r\nTTL t\r\n", "+OK\r\n:3153600000\r\n");
	says("no times", "SET t y EX 0\r\nSET t y EX -1\r\nSET t y EX x\r\nSET t y EX\r\n"
		"SET t y EX 5 PX 5\r\nSET t y KEEPTTL EX 1\r\nSET t y NX XX\r\nSETEX t 0 y\r\n",
		"-ERR invalid expire time in 'set' command\r\n-ERR invalid expire time in 'set' command\r\n"
		"-ERR value is not an integer or out of range\r\n-ERR syntax error\r\n"
		"-ERR syntax error\r\n-ERR syntax error\r\n-ERR syntax error\r\n"
		"-ERR invalid expire time in 'setex' command\r\n");
}

static void test_resp3(void)
{
	char want[500], got[500];
	struct resp_counts k;
	size_t n;
	int rc;

	resp_front_counts(front, &k);
	snprintf(want, sizeof want,
		"%%7\r\n$6\r\nserver\r\n$10\r\nds-kvstore\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$5\r\nproto\r\n"
		":3\r\n$2\r\nid\r\n:%d\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\n"
		"modules\r\n"
		"*0\r\n_\r\n$3\r\njoe\r\n%%1\r\n$4\r\nsave\r\n$0\r\n\r\n+RESET\r\n$-1\r\n$-1\r\n*2\r\n$4\r\nsave\r\n"
		"$0\r\n\r\n",
		(int)k.connections + 1);
	n = talk(S("HELLO 3 SETNAME joe\r\nGET nothing\r\nCLIENT GETNAME\r\nCONFIG GET save\r\nRESET\r\n"
		"GET nothing\r\nCLIENT GETNAME\r\nCONFIG GET save\r\n"), 100, got, sizeof got - 1, &rc);
	got[n] = 0;
	tap_is_str(got, want, "RESP3");
}

static void test_manners(void)
{
	says("ping, echo, quit", "PING\r\nPING 'a b'\r\nECHO \"\\x41\\n\"\r\nQUIT\r\nPING\r\n",
		"+PONG\r\n$3\r\na b\r\n$2\r\nA\n\r\n+OK\r\n");
	says("empty commands", "\r\n*0\r\n*-1\r\nPING\r\n", "+PONG\r\n");
	says("unknown ones, with their arguments", "*2\r\n$3\r\nFOO\r\n$5\r\nab\r\nc\r\nPING\r\nKEYS *\r\nFLUSHALL\r\n",
		"-ERR unknown command 'FOO'\r\n+PONG\r\n-ERR keys is not done here: the store has items that are not "
		"this "
		"client's\r\n-ERR flushall is not done here: the store has items that are not this client's\r\n");
	says("too few and too many arguments", "GET\r\nGET a b\r\n*1\r\n$3\r\nSET\r\n",
		"-ERR wrong number of arguments for 'get'\r\n-ERR wrong number of arguments for 'get'\r\n"
		"-ERR wrong number of arguments for 'set'\r\n");
	says("databases", "SELECT 0\r\nSELECT 1\r\n",
		"+OK\r\n-ERR DB index is out of range: there is database 0 only\r\n");
	says("no version of the protocol", "HELLO 4\r\nHELLO 3 SETNAME\r\nHELLO 3 AUTH a b\r\nGET nothing\r\n",
		"-NOPROTO unsupported protocol version\r\n-ERR syntax error in HELLO\r\n-ERR AUTH: no password is set "
		"here\r\n"
		"$-1\r\n");
	test_resp3();
}

static void test_wrong(void)
{
	static const struct { const char *what, *p; size_t n; } t[] = {
		{ "no length", S("*1\r\nPING\r\n") },
		{ "no string", S("*1\r\n:4\r\nPING\r\n") },
		{ "a negative length", S("*1\r\n$-1\r\n") },
		{ "a length of 2^60", S("*1\r\n$1152921504606846976\r\n") },
		{ "2^40 arguments", S("*1099511627776\r\n") },
		{ "no number of arguments", S("*x\r\n") },
		{ "a string that does not end", S("*1\r\n$4\r\nPINGPING\r\n") },
		{ "quotes that do not match", S("GET \"a\r\n") },
		{ "a page that posts", S("POST / HTTP/1.1\r\nHost: x\r\n\r\nSET a b\r\n") },
	};
	char got[2000];

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		int rc;
		size_t n = talk(t[i].p, t[i].n, 3, got, sizeof got - 1, &rc);

		got[n] = 0;
		tap_ok(rc == DS_PROTO && !strncmp(got, "-ERR Protocol error: ", 21) && strchr(got, '\n') == got + n - 1,
			"%s ends the connection", t[i].what);
	}
	says("what is cut is not done", "*3\r\n$3\r\nSET\r\n$3\r\ncut\r\n$5\r\nab", "");
	says("as the next one sees", "GET cut\r\n", "$-1\r\n");
}

/* SET and GET of a name and a value of so many bytes; *at: where the value is. */
static char *command(size_t name, size_t value, size_t *n, size_t *at)
{
	char *p = malloc(2 * name + value + 200);

	*n = (size_t)sprintf(p, "*3\r\n$3\r\nSET\r\n$%zu\r\n", name);
	memset(p + *n, 'k', name);
	*n += name;
	*n += (size_t)sprintf(p + *n, "\r\n$%zu\r\n", value);
	*at = *n;
	for (size_t i = 0; i < value; i++)
		p[*n + i] = (char)(i * 11 + i / 253);
	*n += value;
	*n += (size_t)sprintf(p + *n, "\r\n*2\r\n$3\r\nGET\r\n$%zu\r\n", name);
	memset(p + *n, 'k', name);
	*n += name;
	*n += (size_t)sprintf(p + *n, "\r\n");
	return p;
}

static void test_sizes(void)
{
	static const size_t sizes[] = { 0, 1, 4096, 4097, 16383, 16384, 16385, 70000, 131072, 1000000 };
	static const size_t pieces[] = { 1 << 20, 4096, 777 };
	static char got[1 << 21];
	size_t n, at;
	int rc;

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		for (size_t k = 0; k < ARRAY_LEN(pieces); k++) {
			char *p = command(10, sizes[i], &n, &at), head[100];
			size_t h = (size_t)sprintf(head, "+OK\r\n$%zu\r\n", sizes[i]);
			size_t len = talk(p, n, pieces[k], got, sizeof got, &rc);

			tap_ok(!rc && len == h + sizes[i] + 2 && !memcmp(got, head, h) &&
				!memcmp(got + h, p + at, sizes[i]) && !memcmp(got + len - 2, "\r\n", 2),
				"a value of %zu bytes in pieces of %zu", sizes[i], pieces[k]);
			free(p);
		}
}

static void test_limits_of_front(void)
{
	struct resp_options o = { .max_value = 50000, .memory = 60000 };
	struct resp_front *was = front;
	static char got[100000];
	struct ds_err err;
	size_t n, at;
	int rc;
	char *p = command(RESP_NAME_MAX, 10, &n, &at);

	talk(p, n, n, got, sizeof got, &rc);
	tap_ok(!rc && !strncmp(got, "+OK\r\n$10\r\n", 10), "the longest name");
	free(p);
	p = command(RESP_NAME_MAX + 1, 10, &n, &at);
	got[talk(p, n, n, got, sizeof got - 1, &rc)] = 0;
	tap_ok(!rc && !strcmp(got,
		"-ERR the name is longer than 8192 bytes\r\n-ERR the name is longer than 8192 bytes\r\n"),
		"a longer one");
	free(p);
	if (resp_front_new(&front, &mem->base, &o, &err))
		tap_bail("%s", err.text);
	p = command(3, 50001, &n, &at);
	got[talk(p, n, n, got, sizeof got - 1, &rc)] = 0;
	tap_ok(!rc && !strcmp(got, "-ERR the value is too large for this store\r\n$-1\r\n"), "too large a value");
	free(p);
	p = command(4, 50000, &n, &at);
	talk(p, n, n, got, sizeof got, &rc);
	tap_ok(!rc && !strncmp(got, "+OK\r\n$50000\r\n", 13), "the largest");
	free(p);
	resp_front_free(front);
	front = was;
}

static void test_store_faults(void)
{
	mem->fail = DS_TEMP;
	mem->full = true;
	says("a store that is full", "SET a b\r\n", "-OOM the store does?as it was told\r\n");
	mem->full = false;
	says("one that is busy", "SET a b\r\nGET a\r\nDEL a\r\nEXISTS a\r\n",
		"-TRYAGAIN the store does?as it was told\r\n-TRYAGAIN the store does?as it was told\r\n"
		"-TRYAGAIN the store does?as it was told\r\n-TRYAGAIN the store does?as it was told\r\n");
	mem->fail = DS_UNAVAILABLE;
	says("one that is not there", "SET a b\r\nMGET a b\r\nDBSIZE\r\nINFO\r\n",
		"-ERR the store does?as it was told\r\n*2\r\n-ERR the store does?as it was told\r\n"
		"-ERR the store does?as it was told\r\n-ERR the store does?as it was told\r\n"
		"-ERR the store does?as it was told\r\n");
	mem->fail = 0;
	says("a value before", "SET a before\r\n", "+OK\r\n");
	mem->spoilt = true;
	says("what is not right is not there", "GET a\r\n", "$-1\r\n");
	mem->spoilt = false;
	mem->admits_nothing = true;
	says("what is not admitted does not leave the value before", "SET a after\r\n", "+OK\r\n");
	mem->admits_nothing = false;
	says("it is gone", "GET a\r\n", "$-1\r\n");
	says("a name", "SET one 1\r\n", "+OK\r\n");
	mem->one_key = true;
	says("another of the same key is not there", "GET two\r\nEXISTS two\r\nSTRLEN two\r\nDEL two\r\n",
		"$-1\r\n:0\r\n:0\r\n:0\r\n");
	mem->one_key = false;
	says("and does it no harm", "GET one\r\n", "$1\r\n1\r\n");
}

/* Commands that come in one piece are all answered, in order. */
static void test_pipeline(void)
{
	enum { N = 5000 };
	static char in[N * 60], want[N * 30], got[N * 30];
	size_t n = 0, w = 0, len;
	int rc;

	for (int i = 0; i < N; i++) {
		n += (size_t)sprintf(in + n, "SET p%d %d\r\nGET p%d\r\n", i % 10, i, i % 10);
		w += (size_t)sprintf(want + w, "+OK\r\n$%d\r\n%d\r\n", snprintf(NULL, 0, "%d", i), i);
	}
	len = talk(in, n, n, got, sizeof got, &rc);
	tap_ok(!rc && len == w && !memcmp(got, want, w), "%d commands in one piece", 2 * N);
}

/* ---- many clients ---- */

enum { CLIENTS = 40, TURNS = 60 };

/* Sends a command, reads its reply, again and again; some send theirs in halves. */
static void *client(void *arg)
{
	struct feed *f = arg;
	char value[3000], want[3100], got[3100];
	bool good = true;

	for (int i = 0; good && i < TURNS; i++) {
		size_t n = (size_t)snprintf(value, sizeof value, "SET c%d %0*d\r\nGET c%d\r\n", f->fd, 1 + i * 40, i,
			f->fd);
		size_t w = (size_t)snprintf(want, sizeof want, "+OK\r\n$%d\r\n%0*d\r\n", 1 + i * 40, 1 + i * 40, i),
			at = 0;
		ssize_t k = 1;

		if (f->piece && send(f->fd, value, n / 2, 0) > 0 && i % 8 == 0)
			usleep(1000);
		if (f->piece)
			send(f->fd, value + n / 2, n - n / 2, 0);
		else
			send(f->fd, value, n, 0);
		while (at < w && (k = recv(f->fd, got + at, w - at, 0)) > 0)
			at += (size_t)k;
		good = k > 0 && !memcmp(got, want, w);
	}
	shutdown(f->fd, SHUT_WR);
	f->n = good;
	return NULL;
}

/* More clients than workers, while some stand still within a command. */
/* The fault: who sent without end was served until the time to drain was over. */
static void test_drain(void)
{
	enum { N = 4000, VALUE = 30000 };
	static char in[N * 7], value[VALUE + 100], got[1 << 16];
	struct resp_front *was = front;
	size_t n = 0, values = 0, refusals = 0;
	struct server s;
	struct feed out;
	pthread_t t[2];
	struct ds_err err;
	char *p;
	int fd[2];

	if (resp_front_new(&front, &mem->base, NULL, &err) || socketpair(AF_UNIX, SOCK_STREAM, 0, fd))
		tap_bail("no front");
	n = (size_t)snprintf(value, sizeof value, "*3\r\n$3\r\nSET\r\n$1\r\nd\r\n$%d\r\n", VALUE);
	memset(value + n, 'v', VALUE);
	memcpy(value + n + VALUE, "\r\n", 2);
	says_n("a large value", value, n + VALUE + 2, S("+OK\r\n"));
	for (n = 0; n < sizeof in; n += 7)
		memcpy(in + n, "GET d\r\n", 7);
	s = (struct server){ fd[0], -1 };
	out = (struct feed){ fd[1], in, n, n };
	pthread_create(&t[0], NULL, serve, &s);
	pthread_create(&t[1], NULL, feed, &out);
	for (bool first = true; (n = (size_t)read(fd[1], got, sizeof got - 1)) > 0 && n < sizeof got; first = false) {
		if (first)
			resp_front_drain(front);
		got[n] = 0;
		for (p = got; (p = strpbrk(p, "$-")); p++) {
			values += *p == '$';
			refusals += *p == '-';
		}
	}
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	tap_ok(!s.rc && values < N / 2 && values + refusals == N,
		"who drains answers what had begun, and refuses the rest: %zu values, %zu refusals", values, refusals);
	close(fd[0]);
	close(fd[1]);
	resp_front_free(front);
	front = was;
}

static void test_clients(void)
{
	static struct server servers[CLIENTS + 4];
	static struct feed feeds[CLIENTS + 4];
	static pthread_t t[CLIENTS + 4], u[CLIENTS + 4];
	unsigned good = 0, ended = 0;
	struct resp_counts k;

	for (size_t i = 0; i < CLIENTS + 4; i++) {
		int fd[2];

		if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd))
			tap_bail("no socket");
		servers[i] = (struct server){ fd[0], -1 };
		feeds[i] = (struct feed){ .fd = fd[1], .piece = i % 3 == 0 };
		pthread_create(&u[i], NULL, serve, &servers[i]);
		if (i >= CLIENTS) /* half a command, and nothing more */
			send(fd[1], S("*2\r\n$3\r\nGET\r\n$5\r\nab"), 0);
	}
	usleep(20000);
	for (size_t i = 0; i < CLIENTS; i++)
		pthread_create(&t[i], NULL, client, &feeds[i]);
	for (size_t i = 0; i < CLIENTS; i++) {
		pthread_join(t[i], NULL);
		good += feeds[i].n == 1;
	}
	tap_ok(good == CLIENTS, "%u of %d clients are served, though four stand still", good, CLIENTS);
	resp_front_counts(front, &k);
	tap_ok(k.clients >= 4, "those are still there");
	for (size_t i = 0; i < CLIENTS + 4; i++) {
		shutdown(servers[i].fd, SHUT_RD);
		pthread_join(u[i], NULL);
		ended += servers[i].rc == (i < CLIENTS ? 0 : DS_UNAVAILABLE);
		close(servers[i].fd);
		close(feeds[i].fd);
	}
	tap_ok(ended == CLIENTS + 4, "all end when they are told to (%u)", ended);
}

/* A client that takes no replies, or sends no more of a command, is left after a while. */
static void test_stalls(void)
{
	struct resp_options o = { .stall_ns = 50000000, .workers = 1 };
	struct resp_front *was = front;
	static char many[200 * 20];
	struct ds_err err;
	struct server s[2];
	pthread_t t[2];
	int fd[2][2];

	says("a large value", "SET big 0\r\n", "+OK\r\n");
	if (resp_front_new(&front, &mem->base, &o, &err))
		tap_bail("%s", err.text);
	{
		size_t n, at;
		char got[100];
		int rc;
		char *p = command(3, 60000, &n, &at);

		talk(p, at + 60000 + 2, 1 << 20, got, sizeof got, &rc);
		free(p);
	}
	for (size_t i = 0; i < 2; i++) {
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd[i]))
			tap_bail("no socket");
		s[i] = (struct server){ fd[i][0], -1 };
		pthread_create(&t[i], NULL, serve, &s[i]);
	}
	for (size_t i = 0; i < 20; i++)
		memcpy(many + i * 9, "GET kkk\r\n", 9);
	send(fd[0][1], many, 20 * 9, 0);
	send(fd[1][1], S("*2\r\n$3\r\nGET\r\n$1"), 0);
	usleep(10000);
	says("others are served meanwhile", "PING\r\n", "+PONG\r\n");
	for (size_t i = 0; i < 2; i++) {
		pthread_join(t[i], NULL);
		tap_is_int(s[i].rc, DS_TEMP, i ? "who sends half a command" : "who takes no replies");
		close(fd[i][0]);
		close(fd[i][1]);
	}
	resp_front_free(front);
	front = was;
}

static void test_front(bool files)
{
	struct ds_err err;

	tap_diag(files ? "by workers" : "by the thread that brought it");
	mem = mem_store_new(files);
	if (resp_front_new(&front, &mem->base, NULL, &err))
		tap_bail("%s", err.text);
	test_values();
	test_times();
	test_manners();
	test_wrong();
	test_sizes();
	test_limits_of_front();
	test_store_faults();
	test_pipeline();
	test_drain();
	test_clients();
	test_stalls();
	resp_front_free(front);
	store_close(&mem->base);
}

/* ---- over a directory ---- */

static void flip(const char *dir, const char *what, size_t n)
{
	char line[600];

	/* In every segment file: a byte of what is found there. */
	snprintf(line, sizeof line, "/usr/bin/python3 - %s/*.seg <<'END'\n"
		"import sys\nfor path in sys.argv[1:]:\n    b = bytearray(open(path, 'rb').read())\n    at = "
		"b.rfind(b'%s' * %zu)\n"
		"    if at >= 0:\n        b[at + 7] ^= 1\n        open(path, 'r+b').write(b)\nEND", dir, what, n);
	tap_ok(system(line) == 0, "a byte of %s's is changed", what);
}

/* GET of a name, so often, of a value that is n times this letter; 0: it is not there. */
static void gets(const char *what, const char *name, size_t n, char letter, int times)
{
	static char got[200000], want[200000];
	char line[100];
	bool good = true;
	size_t w = n ? (size_t)sprintf(want, "$%zu\r\n", n) : (size_t)sprintf(want, "$-1\r\n");

	if (n) {
		memset(want + w, letter, n);
		memcpy(want + w + n, "\r\n", 2);
		w += n + 2;
	}
	for (int i = 0; i < times; i++) {
		int rc;
		size_t len = talk(line, (size_t)sprintf(line, "GET %s\r\n", name), 100, got, sizeof got, &rc);

		good = good && !rc && len == w && !memcmp(got, want, w);
	}
	tap_ok(good, "%s (%d times)", what, times);
}

static void sets(struct resp_front *by, const char *name, size_t n, char letter, const char *options)
{
	static char line[200000], got[100];
	struct resp_front *was = front;
	size_t k;
	int rc;

	front = by;
	k = (size_t)sprintf(line, "*%d\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n", *options ? 5 : 3, strlen(name), name,
		n);
	memset(line + k, letter, n);
	k += n;
	k += (size_t)sprintf(line + k, "\r\n%s", options);
	talk(line, k, k, got, sizeof got, &rc);
	tap_ok(!rc && !memcmp(got, "+OK", 3), "%s is set", name);
	front = was;
}

static void test_directory(void)
{
	struct store_options o = { .capacity = 64 << 20 };
	char dir[] = "/tmp/ds-resp-XXXXXX", addr[100], line[100];
	struct store *s, *other;
	struct resp_front *beside;
	struct ds_err err;

	tap_diag("over a directory");
	if (!mkdtemp(dir))
		tap_bail("no directory");
	snprintf(addr, sizeof addr, "dir:%s/store", dir);
	if (store_open(&s, addr, &o, &err) || store_open(&other, addr, &o, &err) || resp_front_new(&front, s, NULL,
		&err) ||
		resp_front_new(&beside, other, NULL, &err))
		tap_bail("%s", err.text);
	sets(front, "small", 100, 's', "");
	sets(front, "middle", 16000, 'm', "");
	sets(front, "large", 100000, 'l', "");
	gets("a small value", "small", 100, 's', 5);
	gets("one about as large as the buffer", "middle", 16000, 'm', 5);
	gets("a large one", "large", 100000, 'l', 5);
	sets(front, "large", 100000, 'L', "");
	gets("replaced, it is the new one", "large", 100000, 'L', 5);
	sets(beside, "large", 90000, 'o', "");
	usleep(100000);
	gets("replaced by another process", "large", 90000, 'o', 5);
	says("it is deleted", "DEL large\r\n", ":1\r\n");
	gets("and gone", "large", 0, 0, 3);
	sets(front, "short", 100000, 't', "$2\r\nPX\r\n$3\r\n400\r\n");
	gets("one for a while", "short", 100000, 't', 4);
	usleep(450000);
	gets("is over when it is over", "short", 0, 0, 3);
	sets(front, "bad", 100000, 'b', "");
	sets(front, "held", 100000, 'h', "");
	gets("one that is in memory", "held", 100000, 'h', 5);
	snprintf(line, sizeof line, "%s/store", dir);
	flip(line, "b", 50000);
	flip(line, "h", 50000);
	gets("changed in its file, it is not there", "bad", 0, 0, 3);
	gets("but from memory", "held", 100000, 'h', 3);
	resp_front_free(front);
	resp_front_free(beside);
	store_close(s);
	store_close(other);
	snprintf(line, sizeof line, "rm -rf '%s'", dir);
	tap_ok(system(line) == 0, "the directory is removed");
}

int main(void)
{
	signal(SIGPIPE, SIG_DFL); /* nothing may raise it */
	test_front(false);
	test_front(true);
	test_directory();
	return tap_done();
}
