// Render the templates of a chart as Helm does: with Go's text/template, and the few functions that our chart uses.
// Input: a JSON object with Values and Release; arguments: the files of the templates. Output: their text.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"
)

func toYaml(value any) string {
	switch found := value.(type) {
	case map[string]any:
		if len(found) == 0 {
			return "{}"
		}
		names := make([]string, 0, len(found))
		for name := range found {
			names = append(names, name)
		}
		sort.Strings(names)
		lines := []string{}
		for _, name := range names {
			if _, nested := found[name].(map[string]any); nested {
				lines = append(lines, name+":", indent(2, toYaml(found[name])))
			} else {
				lines = append(lines, name+": "+toYaml(found[name]))
			}
		}
		return strings.Join(lines, "\n")
	default:
		text, _ := json.Marshal(value)
		return string(text)
	}
}

func indent(spaces int, text string) string {
	margin := strings.Repeat(" ", spaces)
	return margin + strings.ReplaceAll(text, "\n", "\n"+margin)
}

func main() {
	var data map[string]any
	if err := json.NewDecoder(os.Stdin).Decode(&data); err != nil {
		panic(err)
	}
	functions := template.FuncMap{
		"toYaml": toYaml,
		"indent": indent,
		"sha256sum": func(text string) string {
			sum := sha256.Sum256([]byte(text))
			return hex.EncodeToString(sum[:])
		},
		"quote": func(value any) string { return fmt.Sprintf("%q", fmt.Sprint(value)) },
	}
	for _, path := range os.Args[2:] {
		text, err := os.ReadFile(path)
		if err != nil {
			panic(err)
		}
		parsed, err := template.New(filepath.Base(path)).Option("missingkey=error").Funcs(functions).Parse(string(text))
		if err != nil {
			panic(err)
		}
		fmt.Println("---")
		if err := parsed.Execute(os.Stdout, data); err != nil {
			panic(err)
		}
	}
}
