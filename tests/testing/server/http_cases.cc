// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/server/http_cases.h"

namespace diffserve::testing {
namespace {

std::string Get(const std::string& fields, const std::string& target = "/livez",
                const std::string& version = "HTTP/1.1") {
  return "GET " + target + " " + version + "\r\n" + fields + "\r\n";
}

std::string Post(const std::string& fields, const std::string& body) {
  return "POST /livez HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n" + body;
}

std::string Repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

std::vector<HttpCase> ServedHeadCases() {
  using std::string;
  return {
      {"plain", Get("Host: a\r\n"), 200},
      {"port in host", Get("Host: a.example:8000\r\n"), 200},
      {"ipv6 host", Get("Host: [::1]:80\r\n"), 200},
      {"http/1.0", Get("Host: a\r\n", "/livez", "HTTP/1.0"), 200},
      {"query", Get("Host: a\r\n", "/livez?a=b&c=%41"), 200},
      {"lower case field names", Get("host: a\r\n"), 200},
      {"white space around a value", Get("Host: \t a \t\r\n"), 200},
      {"empty value", Get("Host: a\r\nX-Empty:\r\n"), 200},
      {"bytes above ascii in a value", Get("Host: a\r\nX-Name: \xC3\xA9\r\n"), 200},
      {"as many fields as allowed", Get("Host: a\r\n" + Repeated("X-F: 1\r\n", 99)), 200},
      {"target as long as allowed", Get("Host: a\r\n", "/livez?" + string(8192 - 7, 'q')), 200},
      {"identity content encoding", Get("Host: a\r\nContent-Encoding: identity\r\n"), 200},
      {"zero length", Get("Host: a\r\nContent-Length: 0\r\n"), 200},
      {"no host in 1.0", Get("", "/livez", "HTTP/1.0"), 200},
      {"empty host", Get("Host:\r\n"), 200},
      {"empty host in 1.0", Get("Host: \r\n", "/livez", "HTTP/1.0"), 200},
      {"empty port", Get("Host: a:\r\n"), 200},
      {"absolute target", Get("Host: a\r\n", "http://a/livez"), 200},
      {"absolute target of another host", Get("Host: b\r\n", "http://a:80/livez?x=/y"), 200},
      {"absolute target in capitals", Get("Host: a\r\n", "HTTP://[::1]:80/livez"), 200},
      {"absolute target without host in 1.0", Get("", "http://a/livez", "HTTP/1.0"), 200},
      {"url in the query", Get("Host: a\r\n", "/livez?u=http://b/c"), 200},
      {"empty line first", "\r\n" + Get("Host: a\r\n"), 200},
  };
}

std::vector<HttpCase> HostCases() {
  using std::string;
  return {
      {"no host", Get(""), 400},
      {"no host with an absolute target", Get("", "http://a/livez"), 400},
      {"two hosts in 1.0", Get("Host: a\r\nHost: a\r\n", "/livez", "HTTP/1.0"), 400},
      {"bad host with an absolute target", Get("Host: a b\r\n", "http://a/livez"), 400},
      {"two hosts", Get("Host: a\r\nHost: a\r\n"), 400},
      {"two different hosts", Get("Host: a\r\nHost: b\r\n"), 400},
      {"path in host", Get("Host: a/x?y\r\n"), 400},
      {"query in host", Get("Host: a?x\r\n"), 400},
      {"fragment in host", Get("Host: a#x\r\n"), 400},
      {"user in host", Get("Host: user@a\r\n"), 400},
      {"space in host", Get("Host: a b\r\n"), 400},
      {"comma in host", Get("Host: a,b\r\n"), 400},
      {"percent in host", Get("Host: a%2f\r\n"), 400},
      {"letters as port", Get("Host: a:http\r\n"), 400},
      {"long port", Get("Host: a:123456\r\n"), 400},
      {"open bracket in host", Get("Host: [::1\r\n"), 400},
      {"text after ipv6 host", Get("Host: [::1]x\r\n"), 400},
      {"empty ipv6 host", Get("Host: []\r\n"), 400},
      {"host of 300 characters", Get("Host: " + string(300, 'a') + "\r\n"), 400},
  };
}

std::vector<HttpCase> RequestLineCases() {
  using std::string;
  return {
      {"http/0.9 line", "GET /livez\r\n\r\n", 400},
      {"http/1.2", Get("Host: a\r\n", "/livez", "HTTP/1.2"), 505},
      {"http/1.9", Get("Host: a\r\n", "/livez", "HTTP/1.9"), 505},
      {"http/2.0", Get("Host: a\r\n", "/livez", "HTTP/2.0"), 505},
      {"http/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"http/1.10", Get("Host: a\r\n", "/livez", "HTTP/1.10"), 505},
      {"lower case version", Get("Host: a\r\n", "/livez", "http/1.1"), 400},
      {"no version digits", Get("Host: a\r\n", "/livez", "HTTP/"), 505},
      {"another protocol", Get("Host: a\r\n", "/livez", "ICY/1.1"), 400},
      {"tls hello", string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 15), 400},
      {"two empty lines first", "\r\n\r\n" + Get("Host: a\r\n"), 400},
      {"bare CR first", "\r" + Get("Host: a\r\n"), 400},
      {"bare LF first", "\n" + Get("Host: a\r\n"), 400},
      {"space first", " " + Get("Host: a\r\n"), 400},
      {"two spaces before the target", "GET  /livez HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"two spaces before the version", "GET /livez  HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"tab as separator", "GET\t/livez\tHTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"space after the version", "GET /livez HTTP/1.1 \r\nHost: a\r\n\r\n", 400},
      {"no target", "GET HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"method with a separator", "GE(T /livez HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"only one word", "GET\r\n\r\n", 400},
  };
}

std::vector<HttpCase> TargetCases() {
  using std::string;
  return {
      {"authority target of CONNECT", "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 501},
      {"path of CONNECT", "CONNECT /livez HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"URL of CONNECT", "CONNECT http://a:80/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"authority target of GET", Get("Host: a\r\n", "a:80"), 400},
      {"asterisk target of GET", Get("Host: a\r\n", "*"), 400},
      {"asterisk with more", "OPTIONS *x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"asterisk after a host", "OPTIONS http://a* HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"https target", Get("Host: a\r\n", "https://a/livez"), 421},
      {"ftp target", Get("Host: a\r\n", "ftp://a/livez"), 421},
      {"absolute target without host", Get("Host: a\r\n", "http:///livez"), 400},
      {"absolute target with a user", Get("Host: a\r\n", "http://u@a/livez"), 400},
      {"absolute target with one slash", Get("Host: a\r\n", "http:/a/livez"), 400},
      {"absolute target with a fragment", Get("Host: a\r\n", "http://a/livez#x"), 400},
      {"absolute target with a bad port", Get("Host: a\r\n", "http://a:x/livez"), 400},
      {"network path of a scheme", Get("Host: a\r\n", "://a/livez"), 400},
      {"relative target", Get("Host: a\r\n", "livez"), 400},
      {"fragment in the target", Get("Host: a\r\n", "/livez#x"), 400},
      {"quote in the target", Get("Host: a\r\n", "/livez\""), 400},
      {"back slash in the target", Get("Host: a\r\n", "/..\\livez"), 400},
      {"bytes above ascii in the target", Get("Host: a\r\n", "/live\xC3\xA9"), 400},
      {"target one byte too long", Get("Host: a\r\n", "/livez?" + string(8192 - 6, 'q')), 414},
      {"target of 32 KiB", Get("Host: a\r\n", "/" + string(32 << 10, 'q')), 414},
      {"endless target", "GET /" + string(20 << 10, 'q'), 414},
  };
}

std::vector<HttpCase> LineCases() {
  using std::string;
  return {
      {"bare LF after the request line", "GET /livez HTTP/1.1\nHost: a\r\n\r\n", 400},
      {"bare LF after a field", "GET /livez HTTP/1.1\r\nHost: a\n\r\n", 400},
      {"bare LF everywhere", "GET /livez HTTP/1.1\nHost: a\n\n", 400},
      {"bare CR in a value", Get("Host: a\r\nX: a\rb\r\n"), 400},
      {"bare CR in the request line", "GET /livez\rx HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"NUL in a value", Get(string("Host: a\r\nX: a\0b\r\n", 17)), 400},
      {"NUL in the target", Get("Host: a\r\n", string("/li\0vez", 7)), 400},
      {"control character in a value",
       Get("Host: a\r\nX: a\x01"
           "b\r\n"),
       400},
      {"DEL in a value",
       Get("Host: a\r\nX: a\x7F"
           "b\r\n"),
       400},
      {"folded field", Get("Host: a\r\nX: a\r\n b\r\n"), 400},
      {"folded with a tab", Get("Host: a\r\nX: a\r\n\tb\r\n"), 400},
      {"first field line begins with a space", "GET /livez HTTP/1.1\r\n Host: a\r\n\r\n", 400},
      {"space before the colon", Get("Host : a\r\n"), 400},
      {"tab before the colon", Get("Host: a\r\nX\t: a\r\n"), 400},
      {"no colon", Get("Host: a\r\nX\r\n"), 400},
      {"empty field name", Get("Host: a\r\n: x\r\n"), 400},
      {"field name with a space", Get("Host: a\r\nX Y: a\r\n"), 400},
      {"field name with a bracket", Get("Host: a\r\nX[1]: a\r\n"), 400},
      {"field name above ascii", Get("Host: a\r\nX\xC3\xA9: a\r\n"), 400},
      {"one field too many", Get("Host: a\r\n" + Repeated("X-F: 1\r\n", 100)), 431},
      {"5000 fields", Get("Host: a\r\n" + Repeated("X: 1\r\n", 5000)), 431},
      {"head of 17 KiB", Get("Host: a\r\nX: " + string(17 << 10, 'x') + "\r\n"), 431},
      {"endless field", "GET /livez HTTP/1.1\r\nHost: a\r\nX: " + string(20 << 10, 'x'), 431},
  };
}

std::vector<HttpCase> RepeatedFieldCases() {
  using std::string;
  return {
      {"two authorizations",
       Get("Host: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n"), 400},
      {"two api keys", Get("Host: a\r\nX-Api-Key: a\r\nx-api-key: b\r\n"), 400},
      {"two content types", Get("Host: a\r\nContent-Type: a/b\r\nContent-Type: a/b\r\n"), 400},
      {"two request ids", Get("Host: a\r\nX-Request-Id: a\r\nX-Request-Id: b\r\n"), 400},
      {"unknown expectation", Post("Expect: 200-maybe\r\nContent-Length: 2\r\n", "{}"), 417},
      {"words in Connection", Post("Connection: a b\r\nContent-Length: 2\r\n", "{}"), 400},
      {"quote in Proxy-Connection", Post("Proxy-Connection: \"\r\nContent-Length: 2\r\n", "{}"),
       400},
  };
}

std::vector<HttpCase> FramedBodyCases() {
  using std::string;
  const string chunked = "Transfer-Encoding: chunked\r\n";
  return {
      {"length", Post("Content-Length: 4\r\n", "abcd"), 405},
      {"any content coding", Post("Content-Encoding: br\r\nContent-Length: 4\r\n", "abcd"), 405},
      {"leading zeros in the length", Post("Content-Length: 0004\r\n", "abcd"), 405},
      {"chunks", Post(chunked, "4\r\nabcd\r\n0\r\n\r\n"), 405},
      {"upper case coding name", Post("Transfer-Encoding: CHUNKED\r\n", "0\r\n\r\n"), 405},
      {"hexadecimal chunk sizes", Post(chunked, "a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n"),
       405},
      {"leading zeros in a chunk size", Post(chunked, "0004\r\nabcd\r\n000\r\n\r\n"), 405},
      {"chunk extension", Post(chunked, "4;a=b\r\nabcd\r\n0\r\n\r\n"), 405},
      {"chunk extension in quotes", Post(chunked, "4;a=\"b;\"\r\nabcd\r\n0\r\n\r\n"), 405},
      {"white space around an extension", Post(chunked, "4 \t; a = b\r\nabcd\r\n0\r\n\r\n"), 405},
      {"extension of the last chunk", Post(chunked, "4\r\nabcd\r\n0;a\r\n\r\n"), 405},
      {"trailer", Post(chunked, "4\r\nabcd\r\n0\r\nX-Sum: 1\r\n\r\n"), 405},
      {"authorization in the trailer", Post(chunked, "0\r\nAuthorization: Bearer k\r\n\r\n"), 405},
      {"length and host in the trailer", Post(chunked, "0\r\nContent-Length: 5\r\nHost: b\r\n\r\n"),
       405},
  };
}

std::vector<HttpCase> LengthCases() {
  using std::string;
  const string chunked = "Transfer-Encoding: chunked\r\n";
  return {
      {"length then coding", Post("Content-Length: 4\r\n" + chunked, "0\r\n\r\n"), 400},
      {"coding then length", Post(chunked + "Content-Length: 4\r\n", "0\r\n\r\n"), 400},
      {"two lengths", Post("Content-Length: 4\r\nContent-Length: 5\r\n", "abcde"), 400},
      {"two equal lengths", Post("Content-Length: 4\r\nContent-Length: 4\r\n", "abcd"), 400},
      {"list of equal lengths", Post("Content-Length: 4, 4\r\n", "abcd"), 400},
      {"length with a plus", Post("Content-Length: +4\r\n", "abcd"), 400},
      {"negative length", Post("Content-Length: -1\r\n", ""), 400},
      {"empty length", Post("Content-Length:\r\n", ""), 400},
      {"hexadecimal length", Post("Content-Length: 0x4\r\n", "abcd"), 400},
      {"length with a space inside", Post("Content-Length: 4 4\r\n", "abcd"), 400},
      {"length with a point", Post("Content-Length: 4.0\r\n", "abcd"), 400},
      {"length of 2^64", Post("Content-Length: 18446744073709551616\r\n", ""), 400},
      {"length of 2^63", Post("Content-Length: 9223372036854775808\r\n", ""), 400},
      {"length one above the limit", Post("Content-Length: 4194305\r\n", ""), 413},
      {"length of a terabyte", Post("Content-Length: 1000000000000\r\n", ""), 413},
  };
}

std::vector<HttpCase> CodingCases() {
  using std::string;
  const string chunked = "Transfer-Encoding: chunked\r\n";
  return {
      {"coding in http/1.0", "POST /livez HTTP/1.0\r\nHost: a\r\n" + chunked + "\r\n0\r\n\r\n",
       400},
      {"identity coding", Post("Transfer-Encoding: identity\r\n", ""), 400},
      {"chunked, identity", Post("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"), 400},
      {"identity, chunked", Post("Transfer-Encoding: identity, chunked\r\n", "0\r\n\r\n"), 501},
      {"gzip, chunked", Post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501},
      {"xchunked", Post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), 400},
      {"empty coding", Post("Transfer-Encoding:\r\n", ""), 400},
      {"two codings", Post(chunked + chunked, "0\r\n\r\n"), 501},
      {"coding with a parameter", Post("Transfer-Encoding: chunked;q=1\r\n", "0\r\n\r\n"), 400},
      {"coding with a vertical tab",
       Post("Transfer-Encoding: \x0B"
            "chunked\r\n",
            "0\r\n\r\n"),
       400},
  };
}

std::vector<HttpCase> ChunkCases() {
  using std::string;
  const string chunked = "Transfer-Encoding: chunked\r\n";
  return {
      {"chunk size 0x4", Post(chunked, "0x4\r\nabcd\r\n0\r\n\r\n"), 400},
      {"empty chunk size", Post(chunked, "\r\nabcd\r\n0\r\n\r\n"), 400},
      {"negative chunk size", Post(chunked, "-4\r\nabcd\r\n0\r\n\r\n"), 400},
      {"chunk size with a plus", Post(chunked, "+4\r\nabcd\r\n0\r\n\r\n"), 400},
      {"space before a chunk size", Post(chunked, " 4\r\nabcd\r\n0\r\n\r\n"), 400},
      {"space after a chunk size", Post(chunked, "4 \r\nabcd\r\n0\r\n\r\n"), 400},
      {"chunk size of 9 digits", Post(chunked, "000000004\r\nabcd\r\n0\r\n\r\n"), 400},
      {"chunk size overflow", Post(chunked, "fffffffffffffffff\r\n"), 400},
      {"chunk size above the limit", Post(chunked, "ffffffff\r\n"), 413},
      {"extension before the size", Post(chunked, ";a=b\r\n0\r\n\r\n"), 400},
      {"extension ends in a bare LF", Post(chunked, "4;a=b\nabcd\r\n0\r\n\r\n"), 400},
      {"bare LF in an extension", Post(chunked, "4;a\n=b\r\nabcd\r\n0\r\n\r\n"), 400},
      {"bare CR in an extension", Post(chunked, "4;a\r=b\r\nabcd\r\n0\r\n\r\n"), 400},
      {"quoted CRLF in an extension", Post(chunked, "4;a=\"\r\n\"\r\nabcd\r\n0\r\n\r\n"), 400},
      {"NUL in an extension", Post(chunked, string("4;a\0\r\nabcd\r\n0\r\n\r\n", 19)), 400},
      {"word after the space of a size", Post(chunked, "4 5\r\nabcd\r\n0\r\n\r\n"), 400},
      {"extensions of 17 KiB", Post(chunked, Repeated("1;" + string(999, 'x') + "\r\na\r\n", 17)),
       413},
      {"chunk size ends in a bare LF", Post(chunked, "4\nabcd\r\n0\r\n\r\n"), 400},
      {"chunk ends in a bare LF", Post(chunked, "4\r\nabcd\n0\r\n\r\n"), 400},
      {"chunk longer than its size", Post(chunked, "4\r\nabcde\r\n0\r\n\r\n"), 400},
      {"chunk shorter than its size", Post(chunked, "5\r\nabcd\r\n0\r\n\r\n"), 400},
      {"trailer line ends in a bare LF", Post(chunked, "0\r\nX: 1\n\r\n"), 400},
      {"last chunk ends in bare LFs", Post(chunked, "0\n\n"), 400},
      {"NUL in the trailer", Post(chunked, string("0\r\nX: \0\r\n\r\n", 11)), 400},
      {"trailer of 5 KiB", Post(chunked, "0\r\nX: " + string(5 << 10, 'x') + "\r\n\r\n"), 431},
      {"too many chunks", Post(chunked, Repeated("1\r\na\r\n", 16385) + "0\r\n\r\n"), 413},
  };
}

}  // namespace

std::vector<HttpCase> HttpHeadCases() {
  std::vector<HttpCase> all;
  for (const auto& cases : {ServedHeadCases(), HostCases(), RequestLineCases(), TargetCases(),
                            LineCases(), RepeatedFieldCases()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

std::vector<HttpCase> HttpBodyCases() {
  std::vector<HttpCase> all;
  for (const auto& cases : {FramedBodyCases(), LengthCases(), CodingCases(), ChunkCases()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

}  // namespace diffserve::testing
